// OpenAI's client for Node, unmodified. Arguments: URLs and key as JSON, and a filter of checks.

import "./openai_chat.mjs";
import "./openai_errors.mjs";
import "./openai_stored.mjs";
import "./openai_media.mjs";
import "./openai_streams.mjs";
import { run } from "./harness.mjs";

await run();
