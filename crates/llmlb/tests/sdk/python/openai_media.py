"""Models, embeddings, audio, images, and what nobody has heard of yet."""

import base64

import openai

from harness import ABOUT, KEY, KEYS, check, eq, fails
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
    ask = {"model": "embed", "input": ["a cat", "two cats"]}
    packed = client.embeddings.create(**ask)
    floats = client.embeddings.create(**ask, encoding_format="float")
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
    ask = {"model": "chat", "voice": "alloy", "input": "Hello"}
    with client.audio.speech.with_streaming_response.create(**ask) as spoken:
        eq(spoken.headers["content-type"], "audio/mpeg")
        eq(b"".join(spoken.iter_bytes(chunk_size=100)), BYTES)


@check
def a_recording_goes_where_the_model_is():
    for model in ["chat", "other"] * 2:
        heard = client.audio.transcriptions.create(model=model, file=("talk.mp3", BYTES))
        eq(heard.text, f"4096 bytes of talk.mp3, heard by {model}")


@check(answered_here=1)
def a_recording_for_a_model_that_is_not_there():
    ask = {"model": "whisper-99", "file": ("talk.mp3", BYTES)}
    error = fails(openai.NotFoundError, lambda: client.audio.transcriptions.create(**ask))
    eq((error.code, error.param), ("model_not_found", "model"))


@check
def images():
    for model in ["chat", "other"]:
        made = client.images.generate(model=model, prompt="A cat", size="1024x1024")
        eq(base64.b64decode(made.data[0].b64_json), BYTES)


@check
def a_picture_goes_where_the_model_is():
    for model in ["chat", "other"] * 2:
        pictures = [("cat.png", BYTES), ("dog.png", BYTES[:100])]
        made = client.images.edit(model=model, image=pictures, prompt="A hat")
        eq(base64.b64decode(made.data[0].b64_json), BYTES)


@check
def what_nobody_has_heard_of():
    ask = {"model": "other", "wanted": ["ö", 1.50, None]}
    answer = client.post("/brand/new", body=ask, cast_to=object, options={"params": {"a": "b c"}})
    eq((answer["backend"], answer["method"]), ("second", "POST"))
    assert answer["path"] in ("/v1/brand/new?a=b%20c", "/v1/brand/new?a=b+c"), answer
    for send in (client.get, client.delete, client.put, client.patch):
        answer = send("/brand/new/thing", cast_to=object)
        eq((answer["backend"], answer["path"]), ("first", "/v1/brand/new/thing"))


@check
def the_clients_keys_stay_with_the_server():
    # Clients of other makers use other headers. That none arrives is looked at after each check.
    keys = dict.fromkeys(KEYS, KEY)
    for model in ["chat", "other"]:
        client.embeddings.create(model=model, input="Hello", extra_headers=keys)


@check
def the_backends_key_stays_with_the_server():
    raw = client.chat.completions.with_raw_response.create(
        model="chat", messages=[{"role": "user", "content": "Hello"}]
    )
    assert ABOUT["secret"] not in raw.text + repr(raw.headers)
