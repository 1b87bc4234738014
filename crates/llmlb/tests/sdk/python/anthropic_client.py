"""Anthropic's client as everybody uses it, but for a note of what it sends."""

import anthropic

from harness import KEY, URL, remember, remember_async

client = anthropic.Anthropic(
    base_url=URL,
    api_key=KEY,
    max_retries=0,
    timeout=30,
    http_client=anthropic.DefaultHttpxClient(event_hooks={"request": [remember]}),
)


def async_client():
    """One for each check: it belongs to the loop that it was made in."""
    return anthropic.AsyncAnthropic(
        base_url=URL,
        api_key=KEY,
        max_retries=0,
        timeout=30,
        http_client=anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [remember_async]}),
    )


def ask(text="Hello", model="chat", **more):
    """What every request for a message has."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "max_tokens": 100_000_000, "messages": messages, **more}
