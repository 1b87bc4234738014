"""OpenAI's client with its defaults, apart from a hook that records every request."""

import openai

from harness import KEY, URL, record, record_async

client = openai.OpenAI(
    base_url=f"{URL}/v1",
    api_key=KEY,
    max_retries=0,
    timeout=30,
    http_client=openai.DefaultHttpxClient(event_hooks={"request": [record]}),
)


def async_client():
    """Returns a new client. Each check needs its own: a client belongs to the event loop that created it."""
    return openai.AsyncOpenAI(
        base_url=f"{URL}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [record_async]}),
    )


def user_message(text):
    return [{"role": "user", "content": text}]
