// Errors are of the class that programs wait for, and say what the backend said.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ask, client } from "./anthropic_client.mjs";
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
            const question = ask(`[status ${status}]`, "chat", more);
            const error = await fails(kind, () => client.messages.create(question));
            assert.deepEqual([error.status, error.error.error.type], [status, name]);
            assert.equal(error.error.error.message, "This is what you asked for.");
            assert.equal(error.error.request_id, "req_of_the_backend");
        }
    }
});

check("rejected key of a backend is not the client's", async () => {
    const act = () => client.messages.create(ask("[status 401]"));
    const error = await fails(Anthropic.InternalServerError, act);
    assert.deepEqual([error.status, error.error.error.type], [502, "api_error"]);
});

check("too many requests says when to come back", async () => {
    const act = () => client.messages.create(ask("[status 429]"));
    const error = await fails(Anthropic.RateLimitError, act);
    assert.equal(error.headers.get("retry-after"), "7");
});

check(
    "a model that is not there",
    async () => {
        const { max_tokens, ...question } = ask("Hello", "claude-99");
        for (const act of [
            () => client.messages.create({ ...question, max_tokens }),
            () => client.messages.create({ ...question, max_tokens, stream: true }),
            () => client.messages.countTokens(question),
        ]) {
            const error = await fails(Anthropic.NotFoundError, act);
            const body = error.error;
            assert.deepEqual([body.type, body.error.type], ["error", "not_found_error"]);
            assert.match(body.error.message, /`claude-99`.* acme\/chat:7b, chat, embed/);
            assert.ok(body.request_id);
            assert.equal(error.headers.get("x-request-id"), body.request_id);
        }
    },
    { answeredHere: 3 },
);

check(
    "a refusal has the client's own id",
    async () => {
        const headers = { "x-request-id": "mine" };
        const act = () => client.messages.create(ask("Hello", "claude-99"), { headers });
        const error = await fails(Anthropic.NotFoundError, act);
        assert.equal(error.error.request_id, "mine");
        assert.equal(error.headers.get("x-llmlb-backend"), null);
    },
    { answeredHere: 1 },
);
