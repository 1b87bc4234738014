"""OpenAI's client for Python, unmodified. The arguments: what there is, as JSON; and which checks."""

import openai_chat  # noqa: F401
import openai_errors  # noqa: F401
import openai_kept  # noqa: F401
import openai_media  # noqa: F401
import openai_streams  # noqa: F401
from harness import run

run()
