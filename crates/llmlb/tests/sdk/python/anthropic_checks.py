"""Anthropic's client for Python, unmodified. Arguments: URLs and key as JSON, and a filter of checks."""

import anthropic_errors  # noqa: F401
import anthropic_messages  # noqa: F401
from harness import run

run()
