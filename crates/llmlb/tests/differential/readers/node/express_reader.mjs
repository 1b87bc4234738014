// Reader with Express: routes ignore case and trailing slashes, body-parser parses JSON, and busboy (the
// parser of multer) parses forms.

import { readFileSync } from "node:fs";
import busboy from "busboy";
import express from "express";

const endpoints = JSON.parse(readFileSync(process.argv[2], "utf8"));

const json = express.json({ type: () => true, limit: "64mb" });
const urlencoded = express.urlencoded({ extended: false, limit: "64mb" });

function multipart(request, _response, done) {
  const fields = {};
  let isDone = false;
  // busboy may report several errors, and its end after an error.
  const next = (error) => {
    request.unpipe();
    request.resume();
    if (!isDone) {
      isDone = true;
      done(error);
    }
  };
  const parser = busboy({ headers: request.headers });
  parser.on("field", (name, value) => (fields[name] = value));
  parser.on("file", (_name, stream) => stream.on("error", next).resume());
  parser.on("error", next);
  parser.on("close", () => {
    request.body = fields;
    next();
  });
  request.pipe(parser);
}

function body(endpoint) {
  return (request, response, next) => {
    if (endpoint.reads === "form" && request.is("multipart/form-data")) {
      return multipart(request, response, next);
    }
    if (endpoint.reads === "form" && request.is("application/x-www-form-urlencoded")) {
      return urlencoded(request, response, next);
    }
    return endpoint.reads === "json" || endpoint.reads === "form" ? json(request, response, next) : next();
  };
}

function model(endpoint, request) {
  if (endpoint.reads === "query") {
    return new URL(request.url, "http://localhost").searchParams.get("model");
  }
  if (endpoint.reads === "nothing") {
    return null;
  }
  const document = request.body;
  if (document === null || typeof document !== "object" || Array.isArray(document)) {
    throw new Error("not an object");
  }
  return document.model ?? null;
}

const application = express();
for (const endpoint of endpoints) {
  const method = endpoint.method.toLowerCase();
  const path = endpoint.path.replace(/\{(\w+)\}/g, ":$1");
  application[method](path, body(endpoint), (request, response) => {
    const read = model(endpoint, request);
    if (read !== null && typeof read !== "string") {
      throw new Error("the model is not a string");
    }
    response.end(JSON.stringify({ endpoint: endpoint.path, model: read }));
  });
}
application.use((error, _request, response, _next) => {
  response.statusCode = error.status >= 400 ? error.status : 400;
  response.end(String(error.message));
});
const server = application.listen(0, "127.0.0.1", () => console.log(server.address().port));
process.stdin.on("end", () => process.exit(0)).resume();
