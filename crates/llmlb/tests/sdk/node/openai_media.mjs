// Models, embeddings, audio, images and unknown endpoints.

import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";
import { KEY, KEYS, PICTURE, setup, check, fails } from "./harness.mjs";
import { all, client, userMessage } from "./openai_client.mjs";

const MODELS = ["acme/chat:7b", "chat", "embed", "other", "shared"];
const PECULIAR = ["never", "refuses", "so-far", "twice", "with-the-reason"];

check("models", async () => {
    const listed = (await all(client.models.list())).map(({ id }) => id);
    assert.deepEqual(listed.sort(), [...MODELS, ...PECULIAR].sort());
    for (const name of MODELS) {
        assert.equal((await client.models.retrieve(name)).id, name);
    }
    const error = await fails(OpenAI.NotFoundError, () => client.models.retrieve("gpt-99"));
    assert.equal(error.code, "model_not_found");
});

check("embeddings", async () => {
    const fields = { model: "embed", input: ["a cat", "two cats"] };
    const vector = Array.from({ length: 8 }, (_, at) => at / 8);
    for (const more of [{}, { encoding_format: "float" }]) {
        const { data, usage } = await client.embeddings.create({ ...fields, ...more });
        const vectors = data.map(({ embedding }) => [...embedding]);
        assert.deepEqual(vectors, [vector, vector.map((number) => number + 1)]);
        assert.ok(usage.prompt_tokens > 0);
    }
});

check("moderations", async () => {
    const { results } = await client.moderations.create({ model: "other", input: "Hello" });
    assert.equal(results[0].flagged, false);
});

check("speech", async () => {
    const spoken = await client.audio.speech.create({ model: "other", voice: "alloy", input: "Hi" });
    assert.equal(spoken.headers.get("content-type"), "audio/mpeg");
    assert.ok(PICTURE.equals(Buffer.from(await spoken.arrayBuffer())));
});

check("audio goes to a backend with the model", async () => {
    for (const model of ["chat", "other", "chat", "other"]) {
        // The model field follows the file in the form.
        const file = await toFile(PICTURE, "talk.mp3");
        const transcript = await client.audio.transcriptions.create({ file, model });
        assert.equal(transcript.text, `4096 bytes of talk.mp3, heard by ${model}`);
    }
});

check(
    "audio for an unknown model is an error",
    async () => {
        const file = await toFile(PICTURE, "talk.mp3");
        const fields = { file, model: "whisper-99" };
        const act = () => client.audio.transcriptions.create(fields);
        const error = await fails(OpenAI.NotFoundError, act);
        assert.deepEqual([error.code, error.param], ["model_not_found", "model"]);
    },
    { answeredHere: 1 },
);

check("images", async () => {
    for (const model of ["chat", "other"]) {
        const { data } = await client.images.generate({ model, prompt: "A cat" });
        assert.ok(PICTURE.equals(Buffer.from(data[0].b64_json, "base64")));
    }
});

check("image goes to a backend with the model", async () => {
    for (const model of ["chat", "other", "chat", "other"]) {
        const image = [await toFile(PICTURE, "cat.png"), await toFile(PICTURE, "dog.png")];
        const { data } = await client.images.edit({ image, prompt: "A hat", model });
        assert.ok(PICTURE.equals(Buffer.from(data[0].b64_json, "base64")));
    }
});

check("unknown endpoints are forwarded", async () => {
    const body = { model: "other", wanted: ["ö", 1.5, null] };
    const answer = await client.post("/brand/new", { body, query: { a: "b c" } });
    assert.deepEqual([answer.backend, answer.method], ["second", "POST"]);
    assert.match(answer.path, /^\/v1\/brand\/new\?a=b(%20|\+)c$/);
    for (const method of ["get", "delete", "put", "patch"]) {
        const { backend, path } = await client[method]("/brand/new/thing");
        assert.deepEqual([backend, path], ["first", "/v1/brand/new/thing"]);
    }
});

check("keys of the client are not forwarded", async () => {
    // Other clients use other headers. The harness checks after each check that no key was forwarded.
    const headers = Object.fromEntries(KEYS.map((name) => [name, KEY]));
    for (const model of ["chat", "other"]) {
        await client.embeddings.create({ model, input: "Hello" }, { headers });
    }
});

check("key of a backend is not forwarded", async () => {
    const fields = { model: "chat", messages: userMessage("Hello") };
    const response = await client.chat.completions.create(fields).asResponse();
    const text = JSON.stringify([...response.headers]) + (await response.text());
    assert.ok(!text.includes(setup.secret));
});
