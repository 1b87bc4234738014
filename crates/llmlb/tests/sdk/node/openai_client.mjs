// OpenAI's client with its defaults, apart from a hook that records every request.

import OpenAI from "openai";
import { KEY, URL, recordingFetch } from "./harness.mjs";

export const client = new OpenAI({
    baseURL: `${URL}/v1`,
    apiKey: KEY,
    maxRetries: 0,
    timeout: 30_000,
    fetch: recordingFetch,
});

export const userMessage = (content) => [{ role: "user", content }];

// Returns all chunks of a stream.
export async function all(stream) {
    const chunks = [];
    for await (const chunk of await stream) {
        chunks.push(chunk);
    }
    return chunks;
}
