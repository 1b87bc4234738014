// Messages, streams, tokens, models, files.

import assert from "node:assert/strict";
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { messageRequest, client } from "./anthropic_client.mjs";
import { BYTES, KEY, KEYS, TEXT, TOKENS, FORMS, check, everythingArrived } from "./harness.mjs";
import { fails, produced, together, untilBroken } from "./harness.mjs";

async function hasUsage(usage, backend) {
    const made = await produced(backend);
    assert.deepEqual([made.completion, made.state], [TOKENS, "whole"]);
    assert.equal(usage.output_tokens, TOKENS);
    assert.equal(usage.cache_read_input_tokens, made.cached);
    assert.equal(usage.input_tokens + usage.cache_read_input_tokens, made.prompt);
}

check("messages", async () => {
    const answer = await client.messages.create(messageRequest('Hello, 🌍 and "quotes"'));
    assert.deepEqual([answer.content[0].text, answer.stop_reason], [TEXT, "end_turn"]);
    await hasUsage(answer.usage, "first");
    const cut = await client.messages.create(messageRequest("Hello", "chat", { max_tokens: 3 }));
    assert.deepEqual([cut.stop_reason, cut.usage.output_tokens], ["max_tokens", 3]);
    assert.equal((await client.messages.create(messageRequest("[gzip]"))).content[0].text, TEXT);
});

check("messages go to a backend with the model", async () => {
    const places = { chat: "first", "acme/chat:7b": "first", other: "second" };
    for (const [model, backend] of Object.entries(places)) {
        assert.equal((await client.messages.create(messageRequest("Hello", model))).model, model);
        assert.deepEqual(await everythingArrived(), [backend]);
    }
});

check("messages streamed", async () => {
    for (const form of FORMS) {
        const stream = await client.messages.create(messageRequest(form, "chat", { stream: true }));
        const events = [];
        for await (const event of stream) {
            events.push(event);
        }
        // Clients may show pings or hide them.
        const kinds = events.map(({ type }) => type).filter((type) => type !== "ping");
        assert.deepEqual(kinds, [
            "message_start",
            "content_block_start",
            ...Array(TOKENS).fill("content_block_delta"),
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]);
        const deltas = events.filter(({ type }) => type === "content_block_delta");
        assert.equal(deltas.map(({ delta }) => delta.text).join(""), TEXT);
        assert.equal(events.at(-2).usage.output_tokens, TOKENS);
    }
});

check("messages streamed with the helper", async () => {
    // Backends that report usage more than once report cumulative sums.
    for (const [model, backend] of [["chat", "first"], ["so-far", "so-far"], ["twice", "twice"]]) {
        const stream = client.messages.stream(messageRequest("Hello", model));
        assert.equal(await stream.finalText(), TEXT);
        await hasUsage((await stream.finalMessage()).usage, backend);
    }
});

check("beta messages", async () => {
    const betas = ["token-efficient-tools-2025-02-19"];
    const answer = await client.beta.messages.create(messageRequest("Hello", "chat", { betas }));
    assert.equal(answer.content[0].text, TEXT);
});

check("token count matches the usage of the message", async () => {
    const { max_tokens, ...request } = messageRequest("How many?", "other");
    const counted = await client.messages.countTokens(request);
    await client.messages.create({ max_tokens, ...request });
    assert.equal(counted.input_tokens, (await produced("second")).prompt);
});

check("models", async () => {
    const listed = [];
    for await (const { id } of client.models.list()) {
        listed.push(id);
    }
    assert.equal(new Set(listed).size, listed.length);
    assert.ok(["chat", "other", "acme/chat:7b"].every((name) => listed.includes(name)), listed);
    assert.equal((await client.models.retrieve("acme/chat:7b")).id, "acme/chat:7b");
});

check("files", async () => {
    const file = await toFile(BYTES, "ä file.bin");
    const kept = await client.files.upload({ file });
    assert.deepEqual([kept.size_bytes, kept.type], [BYTES.length, "file"]);
    assert.equal((await client.files.retrieveMetadata(kept.id)).id, kept.id);
    const content = await (await client.files.download(kept.id)).arrayBuffer();
    assert.ok(BYTES.equals(Buffer.from(content)), "its content is another");
    assert.equal((await client.files.delete(kept.id)).type, "file_deleted");
    await fails(Anthropic.NotFoundError, () => client.files.retrieveMetadata(kept.id));
});

check("headers", async () => {
    const { data, response } = await client.messages.create(messageRequest("Hello", "other")).withResponse();
    const made = await produced("second");
    const headers = Object.fromEntries(response.headers);
    assert.equal(headers["x-llmlb-backend"], "second");
    assert.ok(made.request_id, "the backend received no request id");
    assert.equal(headers["x-request-id"], made.request_id);
    assert.match(headers["x-upstream-request-id"], /^req_second_/);
    // Anthropic's clients show the id of the backend, which its support needs.
    assert.match(data._request_id, /^req_second_/);
});

check("keys of the client are not forwarded", async () => {
    // Other versions use other headers. The harness checks after each check that no key was forwarded.
    const headers = Object.fromEntries(KEYS.map((name) => [name, KEY]));
    for (const model of ["chat", "other"]) {
        await client.messages.create(messageRequest("Hello", model), { headers });
    }
});

check("many concurrent requests", async () => {
    const one = async (number) => {
        const text = `number ${number} of many`;
        const request = messageRequest(`[say ${text}]`, ["chat", "other", "shared"][number % 3]);
        if (number % 2) {
            assert.equal((await client.messages.create(request)).content[0].text, text);
        } else {
            assert.equal(await client.messages.stream(request).finalText(), text);
        }
    };
    await together(60, one);
});

check("client that closes a stream cancels it at the backend", async () => {
    const request = messageRequest("[tokens 1000000] [pace 1]", "chat", { max_tokens: 1_000_000, stream: true });
    for await (const event of await client.messages.create(request)) {
        if (event.type === "content_block_delta") {
            break;
        }
    }
    await untilBroken("first");
});

check("response cut by the backend is an error", async () => {
    await assert.rejects(client.messages.create(messageRequest("[cut 3]")));
    await assert.rejects(client.messages.stream(messageRequest("[cut 3]")).finalMessage());
});
