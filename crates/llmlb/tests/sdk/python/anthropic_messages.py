"""Messages, streams, tokens, models, files."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import anthropic

from anthropic_client import message_request, async_client, client
from harness import KEY, KEYS, TEXT, TOKENS, FORMS, check, eq, everything_arrived, fails
from harness import produced, until_broken

BYTES = bytes(range(256)) * 400 + b'\r\n--boundary\r\n{"model":"unserved"}\r\n\r\n' + bytes(3)


def has_usage(usage, backend):
    made = produced(backend)
    eq((made["completion"], made["state"]), (TOKENS, "whole"))
    eq((usage.output_tokens, usage.cache_read_input_tokens), (TOKENS, made["cached"]))
    eq(usage.input_tokens + usage.cache_read_input_tokens, made["prompt"])


@check
def messages():
    answer = client.messages.create(**message_request('Hello, 🌍 and "quotes"', system="Be kind."))
    eq((answer.content[0].text, answer.stop_reason), (TEXT, "end_turn"))
    has_usage(answer.usage, "first")
    cut = client.messages.create(**message_request(max_tokens=3))
    eq((cut.stop_reason, cut.usage.output_tokens), ("max_tokens", 3))
    eq(client.messages.create(**message_request("[gzip]")).content[0].text, TEXT)


@check
def messages_go_to_a_backend_with_the_model():
    for model, backend in [("chat", "first"), ("acme/chat:7b", "first"), ("other", "second")]:
        eq(client.messages.create(**message_request(model=model)).model, model)
        eq(everything_arrived(), [backend])


@check
def messages_streamed():
    for form in FORMS:
        events = list(client.messages.create(**message_request(f"Hello {form}"), stream=True))
        kinds = [event.type for event in events]
        first = ["message_start", "content_block_start"]
        last = ["content_block_stop", "message_delta", "message_stop"]
        # Clients may show pings or hide them.
        kinds = [kind for kind in kinds if kind != "ping"]
        eq(kinds, [*first, *["content_block_delta"] * TOKENS, *last])
        deltas = [event.delta.text for event in events if event.type == "content_block_delta"]
        eq("".join(deltas), TEXT)
        eq(events[-2].usage.output_tokens, TOKENS)


@check
def messages_streamed_with_the_helper():
    # Backends that report usage more than once report cumulative sums.
    for model in ["chat", "so-far", "twice"]:
        with client.messages.stream(**message_request(model=model)) as stream:
            eq("".join(stream.text_stream), TEXT)
            has_usage(stream.get_final_message().usage, "first" if model == "chat" else model)


@check
def beta_messages():
    answer = client.beta.messages.create(**message_request(), betas=["token-efficient-tools-2025-02-19"])
    eq(answer.content[0].text, TEXT)


@check
def token_count_matches_the_usage_of_the_message():
    request = message_request("How many?", "other")
    del request["max_tokens"]
    counted = client.messages.count_tokens(**request)
    client.messages.create(**message_request("How many?", "other"))
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
    raw = client.messages.with_raw_response.create(**message_request(model="other"))
    made = produced("second")
    eq(raw.headers["x-llmlb-backend"], "second")
    assert made["request_id"], "the backend received no request id"
    eq(raw.headers["x-request-id"], made["request_id"])
    assert raw.headers["x-upstream-request-id"].startswith("req_second_"), raw.headers
    # Anthropic's clients show the id of the backend, which its support needs.
    assert raw.parse()._request_id.startswith("req_second_"), raw.headers


@check
def keys_of_the_client_are_not_forwarded():
    # Other versions use other headers. The harness checks after each check that no key was forwarded.
    for model in ["chat", "other"]:
        client.messages.create(**message_request(model=model), extra_headers=dict.fromkeys(KEYS, KEY))


@check
def requests_of_many_threads():
    def one(number):
        text = f"number {number} of many"
        request = message_request(f"[say {text}]", ("chat", "other", "shared")[number % 3])
        if number % 2:
            answer = client.messages.create(**request).content[0].text
        else:
            with client.messages.stream(**request) as stream:
                answer = stream.get_final_text()
        eq(answer, text)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(one, range(60)))


@check
async def many_concurrent_requests():
    async with async_client() as client:

        async def one(number):
            text = f"number {number} of many"
            request = message_request(f"[say {text}]", "shared")
            if number % 2:
                answer = (await client.messages.create(**request)).content[0].text
            else:
                async with client.messages.stream(**request) as stream:
                    answer = await stream.get_final_text()
            eq(answer, text)

        await asyncio.gather(*map(one, range(60)))


@check
def client_that_closes_a_stream_cancels_it_at_the_backend():
    with client.messages.stream(**message_request("[tokens 1000000] [pace 1]")) as stream:
        next(stream.text_stream)
    until_broken("first")


@check
def response_cut_by_the_backend_is_an_error():
    fails(anthropic.APIConnectionError, lambda: client.messages.create(**message_request("[cut 3]")))
    got = []
    try:
        with client.messages.stream(**message_request("[cut 3]")) as stream:
            got.extend(stream.text_stream)
    except Exception as error:
        assert "Remote" in repr(error) or "Connection" in repr(error), repr(error)
    else:
        raise AssertionError(f"the response looks complete: {got}")
