"""Messages, streams, tokens, models, files."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import anthropic

from anthropic_client import ask, async_client, client
from harness import KEY, KEYS, TEXT, TOKENS, WAYS, check, eq, everything_arrived, fails
from harness import produced, until_broken

BYTES = bytes(range(256)) * 400 + b'\r\n--boundary\r\n{"model":"nobody"}\r\n\r\n' + bytes(3)


def has_usage(usage, backend):
    made = produced(backend)
    eq((made["completion"], made["state"]), (TOKENS, "whole"))
    eq((usage.output_tokens, usage.cache_read_input_tokens), (TOKENS, made["cached"]))
    eq(usage.input_tokens + usage.cache_read_input_tokens, made["prompt"])


@check
def messages():
    answer = client.messages.create(**ask('Hello, 🌍 and "quotes"', system="Be kind."))
    eq((answer.content[0].text, answer.stop_reason), (TEXT, "end_turn"))
    has_usage(answer.usage, "first")
    cut = client.messages.create(**ask(max_tokens=3))
    eq((cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 3))
    eq(client.messages.create(**ask("[gzip]")).content[0].text, TEXT)


@check
def messages_go_where_the_model_is():
    for model, backend in [("chat", "first"), ("acme/chat:7b", "first"), ("other", "second")]:
        eq(client.messages.create(**ask(model=model)).model, model)
        eq(everything_arrived(), [backend])


@check
def messages_streamed():
    for way in WAYS:
        events = list(client.messages.create(**ask(f"Hello {way}"), stream=True))
        kinds = [event.type for event in events]
        first = ["message_start", "content_block_start"]
        last = ["content_block_stop", "message_delta", "message_stop"]
        # Pings are the client's own business.
        kinds = [kind for kind in kinds if kind != "ping"]
        eq(kinds, [*first, *["content_block_delta"] * TOKENS, *last])
        deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
        eq("".join(deltas), TEXT)
        eq(events[-2].usage.output_tokens, TOKENS)


@check
def messages_streamed_with_the_helper():
    # Backends that tell usage more than once tell sums so far.
    for model in ["chat", "so-far", "twice"]:
        with client.messages.stream(**ask(model=model)) as stream:
            eq("".join(stream.text_stream), TEXT)
            has_usage(stream.get_final_message().usage, "first" if model == "chat" else model)


@check
def beta_messages():
    answer = client.beta.messages.create(**ask(), betas=["token-efficient-tools-2025-02-19"])
    eq(answer.content[0].text, TEXT)


@check
def tokens_are_counted():
    question = ask("How many?", "other")
    del question["max_tokens"]
    counted = client.messages.count_tokens(**question)
    client.messages.create(**ask("How many?", "other"))
    eq(counted.input_tokens, produced("second")["prompt"])


@check
def models():
    listed = [model.id for model in client.models.list()]
    eq(len(listed), len(set(listed)))
    assert {"chat", "other", "acme/chat:7b"} <= set(listed), listed
    eq(client.models.retrieve("acme/chat:7b").id, "acme/chat:7b")


@check
def files():
    kept = client.files.upload(file=("ä file.bin", BYTES, "application/octet-stream"))
    eq((kept.size_bytes, kept.type), (len(BYTES), "file"))
    eq(client.files.retrieve_metadata(kept.id).id, kept.id)
    eq(client.files.download(kept.id).read(), BYTES)
    eq(client.files.delete(kept.id).type, "file_deleted")
    fails(anthropic.NotFoundError, lambda: client.files.retrieve_metadata(kept.id))


@check
def headers():
    raw = client.messages.with_raw_response.create(**ask(model="other"))
    made = produced("second")
    eq(raw.headers["x-llmlb-backend"], "second")
    assert made["request_id"], "the backend was not told an id"
    eq(raw.headers["x-request-id"], made["request_id"])
    assert raw.headers["x-upstream-request-id"].startswith("req_second_"), raw.headers
    # What Anthropic's clients look at is the backend's own, for those who ask its support.
    assert raw.parse()._request_id.startswith("req_second_"), raw.headers


@check
def the_clients_keys_stay_with_the_server():
    # Other versions use other headers. That none arrives is looked at after each check.
    for model in ["chat", "other"]:
        client.messages.create(**ask(model=model), extra_headers=dict.fromkeys(KEYS, KEY))


@check
def many_threads():
    def one(number):
        text = f"number {number} of many"
        question = ask(f"[say {text}]", ("chat", "other", "shared")[number % 3])
        if number % 2:
            answer = client.messages.create(**question).content[0].text
        else:
            with client.messages.stream(**question) as stream:
                answer = stream.get_final_text()
        eq(answer, text)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(one, range(60)))


@check
async def many_at_a_time():
    async with async_client() as client:

        async def one(number):
            text = f"number {number} of many"
            question = ask(f"[say {text}]", "shared")
            if number % 2:
                answer = (await client.messages.create(**question)).content[0].text
            else:
                async with client.messages.stream(**question) as stream:
                    answer = await stream.get_final_text()
            eq(answer, text)

        await asyncio.gather(*map(one, range(60)))


@check
def a_client_that_has_read_enough():
    with client.messages.stream(**ask("[tokens 1000000] [pace 1]")) as stream:
        next(stream.text_stream)
    until_broken("first")


@check
def an_answer_that_breaks_off_is_an_error():
    fails(anthropic.APIConnectionError, lambda: client.messages.create(**ask("[cut 3]")))
    got = []
    try:
        with client.messages.stream(**ask("[cut 3]")) as stream:
            got.extend(stream.text_stream)
    except Exception as error:
        assert "Remote" in repr(error) or "Connection" in repr(error), repr(error)
    else:
        raise AssertionError(f"it looks whole: {got}")
