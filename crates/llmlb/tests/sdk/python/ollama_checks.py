"""Ollama's client for Python, unmodified. Argument: URL of the server."""

import sys

import ollama

client = ollama.Client(host=sys.argv[1])
hello = [{"role": "user", "content": "Say hello"}]

assert [model.model for model in client.list().models] == ["llama3:latest"]
assert client.show("llama3").capabilities == ["completion"]

whole = client.chat(model="llama3", messages=hello)
assert whole.message.content == "four words it says", whole
assert (whole.prompt_eval_count, whole.eval_count) == (26, 4), whole

parts = list(client.chat(model="llama3", messages=hello, stream=True))
assert "".join(part.message.content for part in parts) == "four words it says", parts
assert parts[-1].done and parts[-1].eval_count == 4, parts

text = client.generate(model="llama3:latest", prompt="Once")
assert text.response == "four words it says", text
assert client.embed(model="llama3", input="a cat").embeddings == [[0.1]]

try:
    client.chat(model="gpt-99", messages=hello)
    raise AssertionError("gpt-99 was served")
except ollama.ResponseError as error:
    assert error.status_code == 404, error
    assert "Available: llama3:latest." in error.error, error
