// Chat, completions, headers and concurrent requests.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { TEXT, TOKENS, check, everythingArrived } from "./harness.mjs";
import { fails, produced, together, untilBroken } from "./harness.mjs";
import { all, client, userMessage } from "./openai_client.mjs";

const HELLO = userMessage('Say hello to the world, which is 🌍 and "quoted"');
const create = (fields) => client.chat.completions.create(fields);

check("chat", async () => {
    const answer = await create({ model: "chat", messages: HELLO, temperature: 0.5, seed: 7 });
    assert.equal(answer.choices[0].message.content, TEXT);
    assert.equal(answer.choices[0].finish_reason, "stop");
    const made = await produced("first");
    assert.deepEqual([made.completion, made.state, made.streamed], [TOKENS, "whole", false]);
    assert.equal(answer.usage.prompt_tokens, made.prompt);
    assert.equal(answer.usage.completion_tokens, TOKENS);
    assert.equal(answer.usage.prompt_tokens_details.cached_tokens, made.cached);
    const cut = await create({ model: "chat", messages: HELLO, max_tokens: 3 });
    assert.equal(cut.choices[0].finish_reason, "length");
    assert.equal(cut.usage.completion_tokens, 3);
});

check("chat goes to a backend with the model", async () => {
    const places = { chat: "first", "acme/chat:7b": "first", other: "second" };
    for (const [model, backend] of Object.entries(places)) {
        assert.equal((await create({ model, messages: HELLO })).model, model);
        assert.deepEqual(await everythingArrived(), [backend]);
    }
});

check("compressed chat response", async () => {
    const answer = await create({ model: "chat", messages: userMessage("[gzip] hello") });
    assert.equal(answer.choices[0].message.content, TEXT);
});

check("chat with a long prompt", async () => {
    const words = "Viele Wörter 多くの言葉 ".repeat(10_000);
    const answer = await create({ model: "chat", messages: userMessage(`${words}[say enough]`) });
    assert.equal(answer.choices[0].message.content, "enough");
});

check("completions", async () => {
    const cut = await client.completions.create({ model: "chat", prompt: "Once", max_tokens: 5 });
    assert.deepEqual([cut.choices[0].finish_reason, cut.usage.completion_tokens], ["length", 5]);
    const whole = await client.completions.create({ model: "other", prompt: ["Once"] });
    assert.equal(whole.choices[0].text, TEXT);
});

check("headers", async () => {
    const { data, response, request_id } = await client.chat.completions
        .create({ model: "chat", messages: HELLO })
        .withResponse();
    const made = await produced("first");
    const headers = Object.fromEntries(response.headers);
    assert.equal(data.choices[0].message.content, TEXT);
    // Rate limits of the operator's account at a backend are not forwarded to clients.
    assert.equal(headers["x-ratelimit-remaining-requests"], undefined);
    assert.equal(headers["x-llmlb-backend"], "first");
    assert.ok(made.request_id, "the backend received no request id");
    assert.equal(headers["x-request-id"], made.request_id);
    assert.deepEqual([data._request_id, request_id], [made.request_id, made.request_id]);
    assert.match(headers["x-upstream-request-id"], /^req_first_/);
    const again = await create({ model: "other", messages: HELLO });
    assert.notEqual(again._request_id, request_id);
});

check("request id of the client is kept", async () => {
    const answer = await client.chat.completions.create(
        { model: "other", messages: HELLO },
        { headers: { "X-Request-ID": "my-own/id:42" } },
    );
    assert.equal(answer._request_id, "my-own/id:42");
    assert.equal((await produced("second")).request_id, "my-own/id:42");
});

check("many concurrent requests", async () => {
    const one = async (number) => {
        const text = `number ${number} of many`;
        const model = ["chat", "other", "shared"][number % 3];
        const fields = { model, messages: userMessage(`[say ${text}]`) };
        if (number % 2) {
            assert.equal((await create(fields)).choices[0].message.content, text);
        } else {
            const chunks = await all(create({ ...fields, stream: true }));
            const said = chunks.map((chunk) => chunk.choices[0].delta.content ?? "").join("");
            assert.equal(said, text);
        }
    };
    await together(60, one);
});

check("client that closes a stream cancels it at the backend", async () => {
    const messages = userMessage("[tokens 1000000] [pace 1]");
    const stream = await create({ model: "chat", messages, stream: true });
    let count = 0;
    for await (const _ of stream) {
        if (++count === 3) {
            break;
        }
    }
    await untilBroken("first");
});

check("client that aborts cancels the request at the backend", async () => {
    const messages = userMessage("[tokens 1000000] [pace 1]");
    const stream = await create({ model: "other", messages, stream: true });
    await stream[Symbol.asyncIterator]().next();
    stream.controller.abort();
    await untilBroken("second");
});

check("response cut by the backend is an error", async () => {
    const fields = { model: "chat", messages: userMessage("[cut 3]") };
    await assert.rejects(create(fields));
    const got = [];
    const reading = async () => {
        for await (const chunk of await create({ ...fields, stream: true })) {
            got.push(chunk.choices[0].delta.content);
        }
    };
    await assert.rejects(reading());
    assert.deepEqual(got, ["", "Grüße", ",", " 世界"]);
});

check("error has a class of the client", async () => {
    const error = await fails(OpenAI.NotFoundError, () => client.models.retrieve("gpt-99"));
    assert.ok(error instanceof OpenAI.APIError);
});
