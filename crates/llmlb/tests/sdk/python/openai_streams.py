"""A stream has the usage that the client asked for, and no other: whatever the server asks for."""

import json

import openai

from harness import TEXT, TOKENS, WAYS, check, eq, fails, produced
from openai_client import async_client, client, says

ASKED = {"stream_options": {"include_usage": True}}


def chat_stream(model, way="", **more):
    stream = client.chat.completions.create(
        model=model, messages=says(f"Hello {way}"), stream=True, **more
    )
    chunks = list(stream)
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    eq(text, TEXT)
    return chunks


def text_stream(model, way="", **more):
    chunks = list(client.completions.create(model=model, prompt=f"Hello {way}", stream=True, **more))
    eq("".join(one.choices[0].text for one in chunks if one.choices), TEXT)
    return chunks


def has_no_usage(chunks):
    eq([one for one in chunks if one.usage is not None], [])
    ends_with_the_reason(chunks)


def ends_with_the_reason(chunks):
    eq([one for one in chunks if not one.choices], [])
    eq([one.choices[0].finish_reason for one in chunks[-2:]], [None, "stop"])


def ends_with_usage(chunks, backend):
    eq([one.choices == [] for one in chunks[-2:]], [False, True])
    made = produced(backend)
    eq((made["streamed"], made["state"], made["completion"]), (True, "whole", TOKENS))
    usage = chunks[-1].usage
    eq((usage.prompt_tokens, usage.completion_tokens), (made["prompt"], TOKENS))
    eq(len([one for one in chunks if not one.choices]), 1)


@check
def stream_without_usage():
    for stream in (chat_stream, text_stream):
        for way in WAYS:
            has_no_usage(stream("chat", way))
        has_no_usage(stream("chat", stream_options={"include_usage": False}))
        has_no_usage(stream("chat", stream_options={"include_obfuscation": False}))


@check
def stream_with_usage():
    for stream in (chat_stream, text_stream):
        for way in WAYS:
            chunks = stream("chat", way, **ASKED)
            ends_with_usage(chunks, "first")
            eq(len([one for one in chunks if one.usage is not None]), 1)


@check
async def async_stream_with_and_without_usage():
    async with async_client() as client:
        ask = {"model": "other", "messages": says("Hello"), "stream": True}
        has_no_usage([one async for one in await client.chat.completions.create(**ask)])
        stream = await client.chat.completions.create(**ask, **ASKED)
        ends_with_usage([one async for one in stream], "second")


@check
def stream_helper():
    ask = {"model": "chat", "messages": says("Hello")}
    with client.chat.completions.stream(**ask) as stream:
        eq("".join(one.delta for one in stream if one.type == "content.delta"), TEXT)
        eq(stream.get_final_completion().usage, None)
    with client.chat.completions.stream(**ask, **ASKED) as stream:
        eq(stream.get_final_completion().usage.completion_tokens, TOKENS)


@check
def stream_leaves_no_trace_of_what_was_not_asked_for():
    for way in WAYS:
        ask = {"model": "chat", "messages": says(f"Hello {way}"), "stream": True}
        with client.chat.completions.with_streaming_response.create(**ask) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
            lines = list(answer.iter_lines())
        # The role, the words, the reason, the end; and an empty line behind each.
        eq(len(lines), 2 * (1 + TOKENS + 1 + 1))
        eq(set(lines[1::2]), {""})
        eq(lines[-2], "data: [DONE]")
        for line in lines[:-2:2]:
            eq(len(json.loads(line.removeprefix("data: "))["choices"]), 1)


@check(may_be_sent_again=True)
def stream_from_one_that_refuses_the_option():
    for _ in range(3):
        has_no_usage(chat_stream("refuses"))
        has_no_usage(text_stream("refuses"))


@check
def stream_option_that_the_client_sent_is_refused():
    error = fails(openai.BadRequestError, lambda: chat_stream("refuses", **ASKED))
    assert "stream_options" in error.message, error


@check
def stream_from_one_that_never_tells():
    for stream in (chat_stream, text_stream):
        has_no_usage(stream("never"))
        # Nobody makes up what the backend did not say.
        has_no_usage(stream("never", **ASKED))
    eq(client.chat.completions.create(model="never", messages=says("Hello")).usage, None)


@check
def stream_from_one_that_tells_so_far():
    for way in WAYS:
        chunks = chat_stream("so-far", way)
        ends_with_the_reason(chunks)
        counts = [one.usage.completion_tokens for one in chunks]
        eq(counts, [*range(TOKENS + 1), TOKENS])
        chunks = chat_stream("so-far", way, **ASKED)
        ends_with_usage(chunks, "so-far")
        eq([one.usage.completion_tokens for one in chunks], [*counts, TOKENS])


@check
def stream_from_one_that_tells_twice():
    for stream in (chat_stream, text_stream):
        for way in WAYS:
            has_no_usage(stream("twice", way))
            chunks = stream("twice", way, **ASKED)
            eq([one.choices == [] for one in chunks[-3:]], [False, True, True])
            eq([one.usage.completion_tokens for one in chunks[-2:]], [TOKENS, TOKENS])


@check
def stream_from_one_that_tells_with_the_reason():
    for way in WAYS:
        chunks = chat_stream("with-the-reason", way)
        ends_with_the_reason(chunks)
        eq([one for one in chunks if one.usage is not None], [chunks[-1]])
        eq(chunks[-1].usage.completion_tokens, TOKENS)
        chunks = chat_stream("with-the-reason", way, **ASKED)
        ends_with_usage(chunks, "with-the-reason")
        eq([one for one in chunks if one.usage is not None], chunks[-2:])
