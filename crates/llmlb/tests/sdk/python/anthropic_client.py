"""Anthropic's client with its defaults, apart from a hook that records every request."""

import anthropic

from harness import KEY, URL, record, record_async

client = anthropic.Anthropic(
    base_url=URL,
    api_key=KEY,
    max_retries=0,
    timeout=30,
    http_client=anthropic.DefaultHttpxClient(event_hooks={"request": [record]}),
)


def async_client():
    """Returns a new client. Each check needs its own: a client belongs to the event loop that created it."""
    return anthropic.AsyncAnthropic(
        base_url=URL,
        api_key=KEY,
        max_retries=0,
        timeout=30,
        http_client=anthropic.DefaultAsyncHttpxClient(event_hooks={"request": [record_async]}),
    )


def message_request(text="Hello", model="chat", **more):
    """Returns the fields of a request for a message."""
    messages = [{"role": "user", "content": text}]
    return {"model": model, "max_tokens": 100_000_000, "messages": messages, **more}
