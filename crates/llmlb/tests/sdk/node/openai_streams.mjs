// A stream has usage only if the client asked for it, although the server asks the backend for it.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { TEXT, TOKENS, FORMS, check, fails, produced } from "./harness.mjs";
import { all, client, userMessage } from "./openai_client.mjs";

const WITH_USAGE = { stream_options: { include_usage: true } };

async function chatStream(model, form = "", more = {}) {
    const fields = { model, messages: userMessage(`Hello ${form}`), stream: true, ...more };
    const chunks = await all(client.chat.completions.create(fields));
    assert.equal(chunks.map((one) => one.choices[0]?.delta.content ?? "").join(""), TEXT);
    return chunks;
}

async function textStream(model, form = "", more = {}) {
    const fields = { model, prompt: `Hello ${form}`, stream: true, ...more };
    const chunks = await all(client.completions.create(fields));
    assert.equal(chunks.map((one) => one.choices[0]?.text ?? "").join(""), TEXT);
    return chunks;
}

const withUsage = (chunks) => chunks.filter(({ usage }) => usage);

function hasNoUsage(chunks) {
    assert.deepEqual(withUsage(chunks), []);
    endsWithTheReason(chunks);
}

function endsWithTheReason(chunks) {
    assert.deepEqual(chunks.filter(({ choices }) => choices.length === 0), []);
    const reasons = chunks.slice(-2).map(({ choices }) => choices[0].finish_reason);
    assert.deepEqual(reasons, [null, "stop"]);
}

async function endsWithUsage(chunks, backend) {
    assert.equal(chunks.filter(({ choices }) => choices.length === 0).length, 1);
    const { choices, usage } = chunks.at(-1);
    const made = await produced(backend);
    assert.deepEqual([made.streamed, made.state, made.completion], [true, "whole", TOKENS]);
    assert.deepEqual(choices, []);
    assert.deepEqual([usage.prompt_tokens, usage.completion_tokens], [made.prompt, TOKENS]);
}

check("stream without usage", async () => {
    for (const stream of [chatStream, textStream]) {
        for (const form of FORMS) {
            hasNoUsage(await stream("chat", form));
        }
        hasNoUsage(await stream("chat", "", { stream_options: { include_usage: false } }));
        hasNoUsage(await stream("chat", "", { stream_options: { include_obfuscation: false } }));
    }
});

check("stream with usage", async () => {
    for (const stream of [chatStream, textStream]) {
        for (const form of FORMS) {
            const chunks = await stream("chat", form, WITH_USAGE);
            await endsWithUsage(chunks, "first");
            assert.equal(withUsage(chunks).length, 1);
        }
    }
});

check("stream helper", async () => {
    const fields = { model: "chat", messages: userMessage("Hello") };
    const without = client.chat.completions.stream(fields);
    assert.equal(await without.finalContent(), TEXT);
    assert.equal((await without.finalChatCompletion()).usage ?? null, null);
    const asked = client.chat.completions.stream({ ...fields, ...WITH_USAGE });
    assert.equal((await asked.finalChatCompletion()).usage.completion_tokens, TOKENS);
});

check("stream has no trace of usage that was not asked for", async () => {
    for (const form of FORMS) {
        const fields = { model: "chat", messages: userMessage(`Hello ${form}`), stream: true };
        const answer = await client.chat.completions.create(fields).asResponse();
        assert.match(answer.headers.get("content-type"), /^text\/event-stream/);
        const events = (await answer.text()).split("\n\n");
        // Role, words, finish reason and [DONE], and nothing after the last empty line.
        assert.equal(events.length, 1 + TOKENS + 1 + 1 + 1);
        assert.deepEqual(events.splice(-2), ["data: [DONE]", ""]);
        for (const event of events) {
            assert.equal(JSON.parse(event.replace(/^data: /, "")).choices.length, 1);
        }
    }
});

check(
    "stream of a backend that rejects the option",
    async () => {
        for (let times = 0; times < 3; times++) {
            hasNoUsage(await chatStream("refuses"));
            hasNoUsage(await textStream("refuses"));
        }
    },
    { mayBeRetried: true },
);

check("rejected stream option of the client is an error", async () => {
    const error = await fails(OpenAI.BadRequestError, () => chatStream("refuses", "", WITH_USAGE));
    assert.match(error.message, /stream_options/);
});

check("stream of a backend that never reports usage", async () => {
    for (const stream of [chatStream, textStream]) {
        hasNoUsage(await stream("never"));
        // The server does not invent usage that the backend did not report.
        hasNoUsage(await stream("never", "", WITH_USAGE));
    }
    const fields = { model: "never", messages: userMessage("Hello") };
    assert.equal((await client.chat.completions.create(fields)).usage, undefined);
});

check("stream of a backend that reports cumulative usage", async () => {
    for (const form of FORMS) {
        const chunks = await chatStream("so-far", form);
        endsWithTheReason(chunks);
        const counts = chunks.map(({ usage }) => usage.completion_tokens);
        assert.deepEqual(counts, [...Array(TOKENS + 1).keys(), TOKENS]);
        const asked = await chatStream("so-far", form, WITH_USAGE);
        await endsWithUsage(asked, "so-far");
        assert.deepEqual(asked.map(({ usage }) => usage.completion_tokens), [...counts, TOKENS]);
    }
});

check("stream of a backend that reports usage twice", async () => {
    for (const stream of [chatStream, textStream]) {
        for (const form of FORMS) {
            hasNoUsage(await stream("twice", form));
            const last = (await stream("twice", form, WITH_USAGE)).slice(-3);
            assert.deepEqual(last.map(({ choices }) => choices.length), [1, 0, 0]);
            assert.deepEqual(
                last.slice(1).map(({ usage }) => usage.completion_tokens),
                [TOKENS, TOKENS],
            );
        }
    }
});

check("stream of a backend that reports usage with the finish reason", async () => {
    for (const form of FORMS) {
        const chunks = await chatStream("with-the-reason", form);
        endsWithTheReason(chunks);
        assert.deepEqual(withUsage(chunks), chunks.slice(-1));
        const asked = await chatStream("with-the-reason", form, WITH_USAGE);
        await endsWithUsage(asked, "with-the-reason");
        assert.deepEqual(withUsage(asked), asked.slice(-2));
    }
});
