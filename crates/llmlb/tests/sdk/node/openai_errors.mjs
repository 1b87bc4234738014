// Errors have the class that programs expect and the message of the backend.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { check, fails } from "./harness.mjs";
import { client, userMessage } from "./openai_client.mjs";

const KINDS = {
    400: OpenAI.BadRequestError,
    409: OpenAI.ConflictError,
    422: OpenAI.UnprocessableEntityError,
    429: OpenAI.RateLimitError,
    500: OpenAI.InternalServerError,
};

const requestStatus = (status, more) =>
    client.chat.completions.create({ model: "chat", messages: userMessage(`[status ${status}]`), ...more });

check("errors of a backend", async () => {
    for (const [status, kind] of Object.entries(KINDS)) {
        for (const more of [{}, { stream: true }]) {
            const error = await fails(kind, () => requestStatus(status, more));
            assert.deepEqual([`${error.status}`, error.code], [status, "as_you_wish"]);
            assert.equal(error.error.message, "This is what you asked for.");
        }
    }
}, { mayBeRetried: true });

check("rejected key of a backend is not the client's", async () => {
    for (const status of [401, 403]) {
        const error = await fails(OpenAI.InternalServerError, () => requestStatus(status));
        assert.deepEqual([error.status, error.code], [502, "backend_auth"]);
    }
});

check("rate limit error has retry after", async () => {
    const error = await fails(OpenAI.RateLimitError, () => requestStatus(429));
    assert.equal(error.headers.get("retry-after"), "7");
});

check("busy response of the only backend is forwarded", async () => {
    const error = await fails(OpenAI.InternalServerError, () => requestStatus(503, { model: "other" }));
    assert.deepEqual([error.status, error.code], [503, "as_you_wish"]);
});

check("errors have a request id", async () => {
    const error = await fails(OpenAI.BadRequestError, () => requestStatus(400));
    assert.ok(error.requestID);
    assert.equal(error.headers.get("x-llmlb-backend"), "first");
    assert.match(error.headers.get("x-upstream-request-id") ?? "", /^req_first_/);
});

check(
    "unknown model is an error with the models",
    async () => {
        const model = "gpt-99";
        for (const act of [
            () => requestStatus(200, { model }),
            () => requestStatus(200, { model, stream: true }),
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
    "error of the server has the client's request id",
    async () => {
        const headers = { "x-request-id": "mine" };
        const fields = { model: "gpt-99", input: "Hello" };
        const act = () => client.embeddings.create(fields, { headers });
        const error = await fails(OpenAI.NotFoundError, act);
        assert.equal(error.requestID, "mine");
        assert.equal(error.headers.get("x-llmlb-backend"), null);
    },
    { answeredHere: 1 },
);
