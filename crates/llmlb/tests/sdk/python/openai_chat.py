"""Chat, completions, headers, and many requests at a time."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai

from harness import TEXT, TOKENS, check, eq, everything_arrived, fails, produced, until_broken
from openai_client import async_client, client, says

HELLO = says('Say hello to the world, which is 🌍 and "quoted"')


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
def chat_goes_where_the_model_is():
    for model, backend in [("chat", "first"), ("acme/chat:7b", "first"), ("other", "second")]:
        eq(client.chat.completions.create(model=model, messages=HELLO).model, model)
        eq(everything_arrived(), [backend])


@check
def chat_compressed():
    answer = client.chat.completions.create(model="chat", messages=says("[gzip] hello"))
    eq(answer.choices[0].message.content, TEXT)


@check
def chat_with_much_to_read():
    words = "Viele Wörter 多くの言葉 " * 10_000
    answer = client.chat.completions.create(model="chat", messages=says(words + "[say enough]"))
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
    # The limits of the operator's account at a backend are not the client's.
    assert "x-ratelimit-remaining-requests" not in raw.headers, raw.headers
    eq(raw.headers["x-llmlb-backend"], "first")
    assert made["request_id"], "the backend was not told an id"
    eq(raw.headers["x-request-id"], made["request_id"])
    eq(answer._request_id, made["request_id"])
    assert raw.headers["x-upstream-request-id"].startswith("req_first_"), raw.headers
    again = client.chat.completions.with_raw_response.create(model="other", messages=HELLO)
    eq(again.headers["x-llmlb-backend"], "second")
    assert again.headers["x-request-id"] != raw.headers["x-request-id"]


@check
def an_id_of_the_clients_own_stays():
    answer = client.chat.completions.create(
        model="other", messages=HELLO, extra_headers={"X-Request-ID": "my-own/id:42"}
    )
    eq(answer._request_id, "my-own/id:42")
    eq(produced("second")["request_id"], "my-own/id:42")


@check
def many_threads():
    def one(number):
        text = f"number {number} of many"
        model = ("chat", "other", "shared")[number % 3]
        ask = {"model": model, "messages": says(f"[say {text}]")}
        if number % 2:
            answer = client.chat.completions.create(**ask).choices[0].message.content
        else:
            stream = client.chat.completions.create(**ask, stream=True)
            answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        eq(answer, text)

    with ThreadPoolExecutor(12) as threads:
        list(threads.map(one, range(60)))


@check
async def many_at_a_time():
    async with async_client() as client:

        async def one(number):
            text = f"number {number} of many"
            ask = {"model": "shared", "messages": says(f"[say {text}]")}
            if number % 2:
                answer = (await client.chat.completions.create(**ask)).choices[0].message.content
            else:
                stream = await client.chat.completions.create(**ask, stream=True)
                answer = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            eq(answer, text)

        await asyncio.gather(*map(one, range(60)))
        eq((await client.models.retrieve("chat")).id, "chat")


@check
def a_client_that_has_read_enough():
    ask = {"model": "chat", "messages": says("[tokens 1000000] [pace 1]"), "stream": True}
    with client.chat.completions.create(**ask) as stream:
        for _, _chunk in zip(range(3), stream):
            pass
    until_broken("first")


@check
async def an_async_client_that_has_read_enough():
    ask = {"model": "other", "messages": says("[tokens 1000000] [pace 1]"), "stream": True}
    async with async_client() as client:
        stream = await client.chat.completions.create(**ask)
        await anext(stream)
        await stream.close()
        until_broken("second")


@check
def an_answer_that_breaks_off_is_an_error():
    ask = {"model": "chat", "messages": says("[cut 3]")}
    fails(openai.APIConnectionError, lambda: client.chat.completions.create(**ask))
    got = []
    try:
        for chunk in client.chat.completions.create(**ask, stream=True):
            got.append(chunk.choices[0].delta.content)
    except Exception as error:
        assert "Remote" in repr(error) or "Connection" in repr(error), repr(error)
    else:
        raise AssertionError(f"it looks whole: {got}")
    eq(got, ["", "Grüße", ",", " 世界"])
