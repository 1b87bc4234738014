"""OpenAI's client for Python, unmodified. Arguments: URLs and key as JSON, and a filter of checks."""

import openai_chat  # noqa: F401
import openai_errors  # noqa: F401
import openai_stored  # noqa: F401
import openai_media  # noqa: F401
import openai_streams  # noqa: F401
from harness import run

run()
