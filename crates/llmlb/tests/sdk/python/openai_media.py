"""Models, embeddings, audio, images and unknown endpoints."""

import base64

import openai

from harness import SETUP, KEY, KEYS, check, eq, fails
from openai_client import client

MODELS = {"chat", "embed", "acme/chat:7b", "shared", "other"}
PECULIAR = {"refuses", "never", "so-far", "twice", "with-the-reason"}
BYTES = bytes(range(256)) * 16


@check
def models():
    listed = [model.id for model in client.models.list()]
    eq(len(listed), len(set(listed)))
    eq(set(listed), MODELS | PECULIAR)
    for name in MODELS:
        eq(client.models.retrieve(name).id, name)
    error = fails(openai.NotFoundError, lambda: client.models.retrieve("gpt-99"))
    eq(error.code, "model_not_found")


@check
def embeddings():
    fields = {"model": "embed", "input": ["a cat", "two cats"]}
    packed = client.embeddings.create(**fields)
    floats = client.embeddings.create(**fields, encoding_format="float")
    vector = [number / 8 for number in range(8)]
    for answer in (packed, floats):
        eq([one.embedding for one in answer.data], [vector, [1 + one for one in vector]])
        eq(answer.usage.total_tokens, answer.usage.prompt_tokens)
        assert answer.usage.prompt_tokens > 0


@check
def moderations():
    eq(client.moderations.create(model="other", input="Hello").results[0].flagged, False)


@check
def speech():
    spoken = client.audio.speech.create(model="other", voice="alloy", input="Hello")
    eq(spoken.content, BYTES)
    fields = {"model": "chat", "voice": "alloy", "input": "Hello"}
    with client.audio.speech.with_streaming_response.create(**fields) as spoken:
        eq(spoken.headers["content-type"], "audio/mpeg")
        eq(b"".join(spoken.iter_bytes(chunk_size=100)), BYTES)


@check
def audio_goes_to_a_backend_with_the_model():
    for model in ["chat", "other"] * 2:
        transcript = client.audio.transcriptions.create(model=model, file=("talk.mp3", BYTES))
        eq(transcript.text, f"4096 bytes of talk.mp3, heard by {model}")


@check(answered_here=1)
def audio_for_an_unknown_model_is_an_error():
    fields = {"model": "whisper-99", "file": ("talk.mp3", BYTES)}
    error = fails(openai.NotFoundError, lambda: client.audio.transcriptions.create(**fields))
    eq((error.code, error.param), ("model_not_found", "model"))


@check
def images():
    for model in ["chat", "other"]:
        made = client.images.generate(model=model, prompt="A cat", size="1024x1024")
        eq(base64.b64decode(made.data[0].b64_json), BYTES)


@check
def image_goes_to_a_backend_with_the_model():
    for model in ["chat", "other"] * 2:
        pictures = [("cat.png", BYTES), ("dog.png", BYTES[:100])]
        made = client.images.edit(model=model, image=pictures, prompt="A hat")
        eq(base64.b64decode(made.data[0].b64_json), BYTES)


@check
def unknown_endpoints_are_forwarded():
    fields = {"model": "other", "wanted": ["ö", 1.50, None]}
    answer = client.post("/brand/new", body=fields, cast_to=object, options={"params": {"a": "b c"}})
    eq((answer["backend"], answer["method"]), ("second", "POST"))
    assert answer["path"] in ("/v1/brand/new?a=b%20c", "/v1/brand/new?a=b+c"), answer
    for send in (client.get, client.delete, client.put, client.patch):
        answer = send("/brand/new/thing", cast_to=object)
        eq((answer["backend"], answer["path"]), ("first", "/v1/brand/new/thing"))


@check
def keys_of_the_client_are_not_forwarded():
    # Other clients use other headers. The harness checks after each check that no key was forwarded.
    keys = dict.fromkeys(KEYS, KEY)
    for model in ["chat", "other"]:
        client.embeddings.create(model=model, input="Hello", extra_headers=keys)


@check
def key_of_a_backend_is_not_forwarded():
    raw = client.chat.completions.with_raw_response.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}]
    )
    assert SETUP["secret"] not in raw.text + repr(raw.headers)
