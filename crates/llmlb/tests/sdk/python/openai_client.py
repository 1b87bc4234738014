"""OpenAI's client as everybody uses it, but for a note of what it sends."""

import openai

from harness import KEY, URL, remember, remember_async

client = openai.OpenAI(
    base_url=f"{URL}/v1",
    api_key=KEY,
    max_retries=0,
    timeout=30,
    http_client=openai.DefaultHttpxClient(event_hooks={"request": [remember]}),
)


def async_client():
    """One for each check: it belongs to the loop that it was made in."""
    return openai.AsyncOpenAI(
        base_url=f"{URL}/v1",
        api_key=KEY,
        max_retries=0,
        timeout=30,
        http_client=openai.DefaultAsyncHttpxClient(event_hooks={"request": [remember_async]}),
    )


def says(text):
    return [{"role": "user", "content": text}]
