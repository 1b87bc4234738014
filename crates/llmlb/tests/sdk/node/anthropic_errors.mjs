// Errors have the class that programs expect and the message of the backend.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { messageRequest, client } from "./anthropic_client.mjs";
import { check, fails } from "./harness.mjs";

const KINDS = [
    [400, Anthropic.BadRequestError, "invalid_request_error"],
    [404, Anthropic.NotFoundError, "not_found_error"],
    [429, Anthropic.RateLimitError, "rate_limit_error"],
    [500, Anthropic.InternalServerError, "api_error"],
];

check("errors of a backend", async () => {
    for (const [status, kind, name] of KINDS) {
        for (const more of [{}, { stream: true }]) {
            const request = messageRequest(`[status ${status}]`, "chat", more);
            const error = await fails(kind, () => client.messages.create(request));
            assert.deepEqual([error.status, error.error.error.type], [status, name]);
            assert.equal(error.error.error.message, "This is what you asked for.");
            assert.equal(error.error.request_id, "req_of_the_backend");
        }
    }
});

check("rejected key of a backend is not the client's", async () => {
    const act = () => client.messages.create(messageRequest("[status 401]"));
    const error = await fails(Anthropic.InternalServerError, act);
    assert.deepEqual([error.status, error.error.error.type], [502, "api_error"]);
});

check("rate limit error has retry after", async () => {
    const act = () => client.messages.create(messageRequest("[status 429]"));
    const error = await fails(Anthropic.RateLimitError, act);
    assert.equal(error.headers.get("retry-after"), "7");
});

check(
    "unknown model is an error with the models",
    async () => {
        const { max_tokens, ...request } = messageRequest("Hello", "claude-99");
        for (const act of [
            () => client.messages.create({ ...request, max_tokens }),
            () => client.messages.create({ ...request, max_tokens, stream: true }),
            () => client.messages.countTokens(request),
        ]) {
            const error = await fails(Anthropic.NotFoundError, act);
            const body = error.error;
            assert.deepEqual([body.type, body.error.type], ["error", "not_found_error"]);
            assert.match(body.error.message, /`claude-99`.* acme\/chat:7b, chat, embed/);
            assert.equal(error.errorCode, "model_not_found");
            assert.ok(body.request_id);
            assert.equal(error.headers.get("x-request-id"), body.request_id);
        }
    },
    { answeredHere: 3 },
);

check(
    "error of the server has the client's request id",
    async () => {
        const headers = { "x-request-id": "mine" };
        const act = () => client.messages.create(messageRequest("Hello", "claude-99"), { headers });
        const error = await fails(Anthropic.NotFoundError, act);
        assert.equal(error.error.request_id, "mine");
        assert.equal(error.headers.get("x-llmlb-backend"), null);
    },
    { answeredHere: 1 },
);
