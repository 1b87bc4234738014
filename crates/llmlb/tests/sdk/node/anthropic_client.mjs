// Anthropic's client as everybody uses it, but for a note of what it sends.

import Anthropic from "@anthropic-ai/sdk";
import { KEY, URL, rememberingFetch } from "./harness.mjs";

export const client = new Anthropic({
    baseURL: URL,
    apiKey: KEY,
    maxRetries: 0,
    timeout: 30_000,
    fetch: rememberingFetch,
});

// What every request for a message has.
export const ask = (content = "Hello", model = "chat", more = {}) => ({
    model,
    max_tokens: 4096,
    messages: [{ role: "user", content }],
    ...more,
});
