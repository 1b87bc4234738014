// Anthropic's client with its defaults, apart from a hook that records every request.

import Anthropic from "@anthropic-ai/sdk";
import { KEY, URL, recordingFetch } from "./harness.mjs";

export const client = new Anthropic({
    baseURL: URL,
    apiKey: KEY,
    maxRetries: 0,
    timeout: 30_000,
    fetch: recordingFetch,
});

// Returns the fields of a request for a message.
export const messageRequest = (content = "Hello", model = "chat", more = {}) => ({
    model,
    max_tokens: 4096,
    messages: [{ role: "user", content }],
    ...more,
});
