// A stream has the usage that the client asked for, and no other: whatever the server asks for.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { TEXT, TOKENS, WAYS, check, fails, produced } from "./harness.mjs";
import { all, client, says } from "./openai_client.mjs";

const ASKED = { stream_options: { include_usage: true } };

async function chatStream(model, way = "", more = {}) {
    const ask = { model, messages: says(`Hello ${way}`), stream: true, ...more };
    const chunks = await all(client.chat.completions.create(ask));
    assert.equal(chunks.map((one) => one.choices[0]?.delta.content ?? "").join(""), TEXT);
    return chunks;
}

async function textStream(model, way = "", more = {}) {
    const ask = { model, prompt: `Hello ${way}`, stream: true, ...more };
    const chunks = await all(client.completions.create(ask));
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
        for (const way of WAYS) {
            hasNoUsage(await stream("chat", way));
        }
        hasNoUsage(await stream("chat", "", { stream_options: { include_usage: false } }));
        hasNoUsage(await stream("chat", "", { stream_options: { include_obfuscation: false } }));
    }
});

check("stream with usage", async () => {
    for (const stream of [chatStream, textStream]) {
        for (const way of WAYS) {
            const chunks = await stream("chat", way, ASKED);
            await endsWithUsage(chunks, "first");
            assert.equal(withUsage(chunks).length, 1);
        }
    }
});

check("stream helper", async () => {
    const ask = { model: "chat", messages: says("Hello") };
    const without = client.chat.completions.stream(ask);
    assert.equal(await without.finalContent(), TEXT);
    assert.equal((await without.finalChatCompletion()).usage ?? null, null);
    const asked = client.chat.completions.stream({ ...ask, ...ASKED });
    assert.equal((await asked.finalChatCompletion()).usage.completion_tokens, TOKENS);
});

check("stream leaves no trace of what was not asked for", async () => {
    for (const way of WAYS) {
        const ask = { model: "chat", messages: says(`Hello ${way}`), stream: true };
        const answer = await client.chat.completions.create(ask).asResponse();
        assert.match(answer.headers.get("content-type"), /^text\/event-stream/);
        const events = (await answer.text()).split("\n\n");
        // The role, the words, the reason, the end; and nothing behind the last of them.
        assert.equal(events.length, 1 + TOKENS + 1 + 1 + 1);
        assert.deepEqual(events.splice(-2), ["data: [DONE]", ""]);
        for (const event of events) {
            assert.equal(JSON.parse(event.replace(/^data: /, "")).choices.length, 1);
        }
    }
});

check(
    "stream from one that refuses the option",
    async () => {
        for (let times = 0; times < 3; times++) {
            hasNoUsage(await chatStream("refuses"));
            hasNoUsage(await textStream("refuses"));
        }
    },
    { maybeSentAgain: true },
);

check("stream option that the client sent is refused", async () => {
    const error = await fails(OpenAI.BadRequestError, () => chatStream("refuses", "", ASKED));
    assert.match(error.message, /stream_options/);
});

check("stream from one that never tells", async () => {
    for (const stream of [chatStream, textStream]) {
        hasNoUsage(await stream("never"));
        // Nobody makes up what the backend did not say.
        hasNoUsage(await stream("never", "", ASKED));
    }
    const ask = { model: "never", messages: says("Hello") };
    assert.equal((await client.chat.completions.create(ask)).usage, undefined);
});

check("stream from one that tells so far", async () => {
    for (const way of WAYS) {
        const chunks = await chatStream("so-far", way);
        endsWithTheReason(chunks);
        const counts = chunks.map(({ usage }) => usage.completion_tokens);
        assert.deepEqual(counts, [...Array(TOKENS + 1).keys(), TOKENS]);
        const asked = await chatStream("so-far", way, ASKED);
        await endsWithUsage(asked, "so-far");
        assert.deepEqual(asked.map(({ usage }) => usage.completion_tokens), [...counts, TOKENS]);
    }
});

check("stream from one that tells twice", async () => {
    for (const stream of [chatStream, textStream]) {
        for (const way of WAYS) {
            hasNoUsage(await stream("twice", way));
            const last = (await stream("twice", way, ASKED)).slice(-3);
            assert.deepEqual(last.map(({ choices }) => choices.length), [1, 0, 0]);
            assert.deepEqual(
                last.slice(1).map(({ usage }) => usage.completion_tokens),
                [TOKENS, TOKENS],
            );
        }
    }
});

check("stream from one that tells with the reason", async () => {
    for (const way of WAYS) {
        const chunks = await chatStream("with-the-reason", way);
        endsWithTheReason(chunks);
        assert.deepEqual(withUsage(chunks), chunks.slice(-1));
        const asked = await chatStream("with-the-reason", way, ASKED);
        await endsWithUsage(asked, "with-the-reason");
        assert.deepEqual(withUsage(asked), asked.slice(-2));
    }
});
