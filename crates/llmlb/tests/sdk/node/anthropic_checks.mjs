// Anthropic's client for Node, unmodified. The arguments: what there is, as JSON; and which checks.

import "./anthropic_errors.mjs";
import "./anthropic_messages.mjs";
import { run } from "./harness.mjs";

await run();
