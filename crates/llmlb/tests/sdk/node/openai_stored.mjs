// Responses, conversations and files that a backend stores: requests for them must reach that backend.

import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { BYTES, TEXT, TOKENS, FORMS, check, fails, produced } from "./harness.mjs";
import { all, client } from "./openai_client.mjs";

// Number of repetitions of an act that one of two backends could serve by chance.
const OFTEN = 8;

const product = (some, others) => some.flatMap((one) => others.map((other) => [one, other]));

check("responses", async () => {
    const fields = { model: "chat", input: "Say hello", max_output_tokens: 50 };
    const answer = await client.responses.create(fields);
    assert.deepEqual([answer.status, answer.output_text], ["completed", TEXT]);
    const made = await produced("first");
    const { input_tokens, output_tokens, input_tokens_details } = answer.usage;
    assert.deepEqual([input_tokens, output_tokens], [made.prompt, TOKENS]);
    assert.equal(input_tokens_details.cached_tokens, made.cached);
});

check("responses streamed", async () => {
    for (const form of FORMS) {
        const fields = { model: "other", input: `Hello ${form}`, stream: true };
        const events = await all(client.responses.create(fields));
        const numbers = events.map(({ sequence_number }) => sequence_number);
        assert.deepEqual(numbers, [...Array(TOKENS + 8).keys()]);
        const deltas = events.filter(({ type }) => type === "response.output_text.delta");
        assert.equal(deltas.map(({ delta }) => delta).join(""), TEXT);
        assert.equal(events.at(-1).type, "response.completed");
        assert.equal(events.at(-1).response.usage.output_tokens, TOKENS);
    }
    const stream = client.responses.stream({ model: "chat", input: "Hello" });
    assert.equal((await stream.finalResponse()).output_text, TEXT);
});

check("response is retrieved from the backend that created it", async () => {
    for (const [model, input] of product(["chat", "other"], ["Remember this", "[gzip] this"])) {
        const { id } = await client.responses.create({ model, input });
        assert.equal((await client.responses.retrieve(id)).output_text, TEXT);
        const { data } = await client.responses.inputItems.list(id);
        assert.deepEqual(data.map((item) => item.content[0].text), [input]);
        await client.responses.delete(id);
        const error = await fails(OpenAI.NotFoundError, () => client.responses.retrieve(id));
        assert.match(error.message, new RegExp(`'${id}' not found`));
    }
});

check("streamed response is retrieved from the backend that created it", async () => {
    for (const [model, form] of product(["chat", "other"], FORMS)) {
        const fields = { model, input: `Hello ${form}`, stream: true };
        const [first] = await all(client.responses.create(fields));
        assert.equal((await client.responses.retrieve(first.response.id)).output_text, TEXT);
    }
});

check("conversation continues at the backend where it began", async () => {
    for (const model of ["chat", "other"]) {
        for (let times = 0; times < OFTEN; times++) {
            let before = (await client.responses.create({ model, input: "Begin" })).id;
            for (let steps = 0; steps < 2; steps++) {
                const fields = { model: "shared", input: "Go on", previous_response_id: before };
                const answer = await client.responses.create(fields);
                assert.equal(answer.previous_response_id, before);
                before = answer.id;
            }
        }
    }
});

check("files", async () => {
    const file = await toFile(BYTES, "ä file.bin");
    const kept = await client.files.create({ file, purpose: "assistants" });
    assert.deepEqual([kept.bytes, kept.purpose], [BYTES.length, "assistants"]);
    assert.equal((await client.files.retrieve(kept.id)).id, kept.id);
    const content = await (await client.files.content(kept.id)).arrayBuffer();
    assert.ok(BYTES.equals(Buffer.from(content)), "its content is another");
    const listed = await all(client.files.list());
    assert.ok(listed.some(({ id }) => id === kept.id));
    assert.equal((await client.files.delete(kept.id)).deleted, true);
    const error = await fails(OpenAI.NotFoundError, () => client.files.retrieve(kept.id));
    assert.match(error.message, /No such File object/);
});

check("file with a model goes to a backend with the model", async () => {
    for (let times = 0; times < 2; times++) {
        const file = await toFile(BYTES, "b.jsonl");
        // Uploads are streamed unread: the query names the model.
        const kept = await client.files.create({ file, purpose: "batch" }, { query: { model: "other" } });
        assert.match(kept.id, /^file-second_/);
        const content = await (await client.files.content(kept.id)).arrayBuffer();
        assert.ok(BYTES.equals(Buffer.from(content)), "its content is another");
        assert.equal((await client.files.delete(kept.id)).deleted, true);
    }
});

check("file is found after a compressed upload response", async () => {
    const bytes = Buffer.concat([Buffer.from("[gzip]"), BYTES]);
    const file = await toFile(bytes, "c.jsonl");
    const kept = await client.files.create({ file, purpose: "batch" }, { query: { model: "other" } });
    const content = await (await client.files.content(kept.id)).arrayBuffer();
    assert.ok(bytes.equals(Buffer.from(content)), "its content is another");
});
