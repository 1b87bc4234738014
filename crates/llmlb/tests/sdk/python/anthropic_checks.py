"""Anthropic's client for Python, unmodified. The arguments: what there is, as JSON; and which checks."""

import anthropic_errors  # noqa: F401
import anthropic_messages  # noqa: F401
from harness import run

run()
