// OpenAI's client for Node, unmodified. The arguments: what there is, as JSON; and which checks.

import "./openai_chat.mjs";
import "./openai_errors.mjs";
import "./openai_kept.mjs";
import "./openai_media.mjs";
import "./openai_streams.mjs";
import { run } from "./harness.mjs";

await run();
