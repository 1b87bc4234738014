"""Chat, completions, headers and concurrent requests."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai

from harness import TEXT, TOKENS, check, eq, everything_arrived, fails, produced, until_broken
from openai_client import async_client, client, user_message

HELLO = user_message('Say hello to the world, which is 🌍 and "quoted"')


@check
def chat():
    answer = client.chat.completions.create(model="chat", messages=HELLO, temperature=0.5, seed=7)
    eq(answer.choices[0].message.content, TEXT)
    eq(answer.choices[0].finish_reason, "stop")
    made = produced("first")
    eq((made["completion"], made["state"], made["streamed"]), (TOKENS, "whole", False))
    eq(answer.usage.prompt_tokens, made["prompt"])
    eq(answer.usage.completion_tokens, TOKENS)
    eq(answer.usage.prompt_tokens_details.cached_tokens, made["cached"])
    cut = client.chat.completions.create(model="chat", messages=HELLO, max_tokens=3)
    eq((cut.choices[0].finish_reason, cut.usage.completion_tokens), ("length", 3))


@check
def chat_goes_to_a_backend_with_the_model():
    for model, backend in [("chat", "first"), ("acme/chat:7b", "first"), ("other", "second")]:
        eq(client.chat.completions.create(model=model, messages=HELLO).model, model)
        eq(everything_arrived(), [backend])


@check
def compressed_chat_response():
    answer = client.chat.completions.create(model="chat", messages=user_message("[gzip] hello"))
    eq(answer.choices[0].message.content, TEXT)


@check
def chat_with_a_long_prompt():
    words = "Viele Wörter 多くの言葉 " * 10_000
    answer = client.chat.completions.create(model="chat", messages=user_message(words + "[say enough]"))
    eq(answer.choices[0].message.content, "enough")


@check
def completions():
    answer = client.completions.create(model="chat", prompt="Once upon a time", max_tokens=5)
    eq((answer.choices[0].finish_reason, answer.usage.completion_tokens), ("length", 5))
    eq(client.completions.create(model="other", prompt=["Once"]).choices[0].text, TEXT)


@check
def headers():
    raw = client.chat.completions.with_raw_response.create(model="chat", messages=HELLO)
    made = produced("first")
    answer = raw.parse()
    eq(answer.choices[0].message.content, TEXT)
    # Rate limits of the operator's account at a backend are not forwarded to clients.
    assert "x-ratelimit-remaining-requests" not in raw.headers, raw.headers
    eq(raw.headers["x-llmlb-backend"], "first")
    assert made["request_id"], "the backend received no request id"
    eq(raw.headers["x-request-id"], made["request_id"])
    eq(answer._request_id, made["request_id"])
    assert raw.headers["x-upstream-request-id"].startswith("req_first_"), raw.headers
    again = client.chat.completions.with_raw_response.create(model="other", messages=HELLO)
    eq(again.headers["x-llmlb-backend"], "second")
    assert again.headers["x-request-id"] != raw.headers["x-request-id"]


@check
def request_id_of_the_client_is_kept():
    answer = client.chat.completions.create(
        model="other", messages=HELLO, extra_headers={"X-Request-ID": "my-own/id:42"}
    )
    eq(answer._request_id, "my-own/id:42")
    eq(produced("second")["request_id"], "my-own/id:42")


@check
def requests_of_many_threads():
    def one(number):
        text = f"number {number} of many"
        model = ("chat", "other", "shared")[number % 3]
        fields = {"model": model, "messages": user_message(f"[say {text}]")}
        if number % 2:
            answer = client.chat.completions.create(**fields).choices[0].message.content
        else:
            stream = client.chat.completions.create(**fields, stream=True)
            answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        eq(answer, text)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(one, range(60)))


@check
async def many_concurrent_requests():
    async with async_client() as client:

        async def one(number):
            text = f"number {number} of many"
            fields = {"model": "shared", "messages": user_message(f"[say {text}]")}
            if number % 2:
                answer = (await client.chat.completions.create(**fields)).choices[0].message.content
            else:
                stream = await client.chat.completions.create(**fields, stream=True)
                answer = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            eq(answer, text)

        await asyncio.gather(*map(one, range(60)))
        eq((await client.models.retrieve("chat")).id, "chat")


@check
def client_that_closes_a_stream_cancels_it_at_the_backend():
    fields = {"model": "chat", "messages": user_message("[tokens 1000000] [pace 1]"), "stream": True}
    with client.chat.completions.create(**fields) as stream:
        for _, _chunk in zip(range(3), stream):
            pass
    until_broken("first")


@check
async def async_client_that_closes_a_stream_cancels_it_at_the_backend():
    fields = {"model": "other", "messages": user_message("[tokens 1000000] [pace 1]"), "stream": True}
    async with async_client() as client:
        stream = await client.chat.completions.create(**fields)
        await anext(stream)
        await stream.close()
        until_broken("second")


@check
def response_cut_by_the_backend_is_an_error():
    fields = {"model": "chat", "messages": user_message("[cut 3]")}
    fails(openai.APIConnectionError, lambda: client.chat.completions.create(**fields))
    got = []
    try:
        for chunk in client.chat.completions.create(**fields, stream=True):
            got.append(chunk.choices[0].delta.content)
    except Exception as error:
        assert "Remote" in repr(error) or "Connection" in repr(error), repr(error)
    else:
        raise AssertionError(f"the response looks complete: {got}")
    eq(got, ["", "Grüße", ",", " 世界"])
