// Anthropic's client for Node, unmodified. Arguments: URLs and key as JSON, and a filter of checks.

import "./anthropic_errors.mjs";
import "./anthropic_messages.mjs";
import { run } from "./harness.mjs";

await run();
