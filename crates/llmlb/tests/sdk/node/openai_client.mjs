// OpenAI's client as everybody uses it, but for a note of what it sends.

import OpenAI from "openai";
import { KEY, URL, rememberingFetch } from "./harness.mjs";

export const client = new OpenAI({
    baseURL: `${URL}/v1`,
    apiKey: KEY,
    maxRetries: 0,
    timeout: 30_000,
    fetch: rememberingFetch,
});

export const says = (content) => [{ role: "user", content }];

// Everything that a stream has.
export async function all(stream) {
    const chunks = [];
    for await (const chunk of await stream) {
        chunks.push(chunk);
    }
    return chunks;
}
