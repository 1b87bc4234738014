"""The official client, unmodified, against `llmlb serve --demo`. Argument: the base URL."""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="unused", max_retries=0)

models = [model.id for model in client.models.list()]
assert models == ["demo", "demo-embed", "demo-large"], models
assert client.models.retrieve("demo").id == "demo"

hello = [{"role": "user", "content": "Say hello"}]
whole = client.chat.completions.create(model="demo", messages=hello, max_tokens=20)
assert whole.choices[0].message.role == "assistant"
assert whole.choices[0].message.content
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens

pieces, usage, finish = [], None, None
stream = client.chat.completions.create(
    model="demo", messages=hello, stream=True, stream_options={"include_usage": True}
)
for chunk in stream:
    if chunk.choices:
        pieces.append(chunk.choices[0].delta.content or "")
        finish = chunk.choices[0].finish_reason or finish
    usage = chunk.usage or usage
assert finish == "stop", finish
assert usage.completion_tokens == len([piece for piece in pieces if piece]), usage
assert len("".join(pieces)) > 50

# A client closes a stream that is not complete.
stream = client.chat.completions.create(model="demo", messages=hello, stream=True)
for _, chunk in zip(range(3), stream):
    pass
stream.close()

text = client.completions.create(model="demo-large", prompt="Once upon a time", max_tokens=5)
assert text.choices[0].finish_reason == "length"
assert text.usage.completion_tokens == 5

vectors = client.embeddings.create(model="demo-embed", input=["a cat", "two cats"])
assert len(vectors.data) == 2 and len(vectors.data[0].embedding) == 64
floats = client.embeddings.create(model="demo-embed", input="a cat", encoding_format="float")
for a, b in zip(floats.data[0].embedding, vectors.data[0].embedding, strict=True):
    assert abs(a - b) < 1e-6

try:
    client.chat.completions.create(model="gpt-99", messages=hello)
    raise AssertionError("gpt-99 was served")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error
    assert "Available: demo, demo-embed, demo-large" in error.message, error

try:
    client.chat.completions.create(model="demo", messages=[])
    raise AssertionError("a chat without messages was served")
except openai.BadRequestError as error:
    assert error.param == "messages", error

print("all good")
