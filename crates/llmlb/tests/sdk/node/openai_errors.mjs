// Errors are of the class that programs wait for, and say what the backend said.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { check, fails } from "./harness.mjs";
import { client, says } from "./openai_client.mjs";

const KINDS = {
    400: OpenAI.BadRequestError,
    409: OpenAI.ConflictError,
    422: OpenAI.UnprocessableEntityError,
    429: OpenAI.RateLimitError,
    500: OpenAI.InternalServerError,
};

const ask = (status, more) =>
    client.chat.completions.create({ model: "chat", messages: says(`[status ${status}]`), ...more });

check("errors of a backend", async () => {
    for (const [status, kind] of Object.entries(KINDS)) {
        for (const more of [{}, { stream: true }]) {
            const error = await fails(kind, () => ask(status, more));
            assert.deepEqual([`${error.status}`, error.code], [status, "as_you_wish"]);
            assert.equal(error.error.message, "This is what you asked for.");
        }
    }
}, { maybeSentAgain: true });

check("rejected key of a backend is not the client's", async () => {
    for (const status of [401, 403]) {
        const error = await fails(OpenAI.InternalServerError, () => ask(status));
        assert.deepEqual([error.status, error.code], [502, "backend_auth"]);
    }
});

check("too many requests says when to come back", async () => {
    const error = await fails(OpenAI.RateLimitError, () => ask(429));
    assert.equal(error.headers.get("retry-after"), "7");
});

check("an only backend that is busy", async () => {
    const error = await fails(OpenAI.InternalServerError, () => ask(503, { model: "other" }));
    assert.deepEqual([error.status, error.code], [503, "as_you_wish"]);
});

check("errors have an id", async () => {
    const error = await fails(OpenAI.BadRequestError, () => ask(400));
    assert.ok(error.requestID);
    assert.equal(error.headers.get("x-llmlb-backend"), "first");
    assert.match(error.headers.get("x-upstream-request-id") ?? "", /^req_first_/);
});

check(
    "a model that is not there",
    async () => {
        const model = "gpt-99";
        for (const act of [
            () => ask(200, { model }),
            () => ask(200, { model, stream: true }),
            () => client.completions.create({ model, prompt: "Hello" }),
            () => client.embeddings.create({ model, input: "Hello" }),
            () => client.responses.create({ model, input: "Hello" }),
            () => client.images.generate({ model, prompt: "Hello" }),
        ]) {
            const error = await fails(OpenAI.NotFoundError, act);
            const { code, param, type, message } = error;
            const wanted = ["model_not_found", "model", "invalid_request_error"];
            assert.deepEqual([code, param, type], wanted);
            assert.match(message, /`gpt-99`.* acme\/chat:7b, chat, embed/);
        }
    },
    { answeredHere: 6 },
);

check(
    "a refusal has an id",
    async () => {
        const headers = { "x-request-id": "mine" };
        const ask = { model: "gpt-99", input: "Hello" };
        const act = () => client.embeddings.create(ask, { headers });
        const error = await fails(OpenAI.NotFoundError, act);
        assert.equal(error.requestID, "mine");
        assert.equal(error.headers.get("x-llmlb-backend"), null);
    },
    { answeredHere: 1 },
);
