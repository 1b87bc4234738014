"""A stream has usage only if the client asked for it, although the server asks the backend for it."""

import json

import openai

from harness import TEXT, TOKENS, FORMS, check, eq, fails, produced
from openai_client import async_client, client, user_message

WITH_USAGE = {"stream_options": {"include_usage": True}}


def chat_stream(model, form="", **more):
    stream = client.chat.completions.create(
        model=model, messages=user_message(f"Hello {form}"), stream=True, **more
    )
    chunks = list(stream)
    text = "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)
    eq(text, TEXT)
    return chunks


def text_stream(model, form="", **more):
    chunks = list(client.completions.create(model=model, prompt=f"Hello {form}", stream=True, **more))
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
        for form in FORMS:
            has_no_usage(stream("chat", form))
        has_no_usage(stream("chat", stream_options={"include_usage": False}))
        has_no_usage(stream("chat", stream_options={"include_obfuscation": False}))


@check
def stream_with_usage():
    for stream in (chat_stream, text_stream):
        for form in FORMS:
            chunks = stream("chat", form, **WITH_USAGE)
            ends_with_usage(chunks, "first")
            eq(len([one for one in chunks if one.usage is not None]), 1)


@check
async def async_stream_with_and_without_usage():
    async with async_client() as client:
        fields = {"model": "other", "messages": user_message("Hello"), "stream": True}
        has_no_usage([one async for one in await client.chat.completions.create(**fields)])
        stream = await client.chat.completions.create(**fields, **WITH_USAGE)
        ends_with_usage([one async for one in stream], "second")


@check
def stream_helper():
    fields = {"model": "chat", "messages": user_message("Hello")}
    with client.chat.completions.stream(**fields) as stream:
        eq("".join(one.delta for one in stream if one.type == "content.delta"), TEXT)
        eq(stream.get_final_completion().usage, None)
    with client.chat.completions.stream(**fields, **WITH_USAGE) as stream:
        eq(stream.get_final_completion().usage.completion_tokens, TOKENS)


@check
def stream_has_no_trace_of_usage_that_was_not_asked_for():
    for form in FORMS:
        fields = {"model": "chat", "messages": user_message(f"Hello {form}"), "stream": True}
        with client.chat.completions.with_streaming_response.create(**fields) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream"), answer.headers
            lines = list(answer.iter_lines())
        # Role, words, finish reason and [DONE], each followed by an empty line.
        eq(len(lines), 2 * (1 + TOKENS + 1 + 1))
        eq(set(lines[1::2]), {""})
        eq(lines[-2], "data: [DONE]")
        for line in lines[:-2:2]:
            eq(len(json.loads(line.removeprefix("data: "))["choices"]), 1)


@check(may_be_retried=True)
def stream_of_a_backend_that_rejects_the_option():
    for _ in range(3):
        has_no_usage(chat_stream("refuses"))
        has_no_usage(text_stream("refuses"))


@check
def rejected_stream_option_of_the_client_is_an_error():
    error = fails(openai.BadRequestError, lambda: chat_stream("refuses", **WITH_USAGE))
    assert "stream_options" in error.message, error


@check
def stream_of_a_backend_that_never_reports_usage():
    for stream in (chat_stream, text_stream):
        has_no_usage(stream("never"))
        # The server does not invent usage that the backend did not report.
        has_no_usage(stream("never", **WITH_USAGE))
    eq(client.chat.completions.create(model="never", messages=user_message("Hello")).usage, None)


@check
def stream_of_a_backend_that_reports_cumulative_usage():
    for form in FORMS:
        chunks = chat_stream("so-far", form)
        ends_with_the_reason(chunks)
        counts = [one.usage.completion_tokens for one in chunks]
        eq(counts, [*range(TOKENS + 1), TOKENS])
        chunks = chat_stream("so-far", form, **WITH_USAGE)
        ends_with_usage(chunks, "so-far")
        eq([one.usage.completion_tokens for one in chunks], [*counts, TOKENS])


@check
def stream_of_a_backend_that_reports_usage_twice():
    for stream in (chat_stream, text_stream):
        for form in FORMS:
            has_no_usage(stream("twice", form))
            chunks = stream("twice", form, **WITH_USAGE)
            eq([one.choices == [] for one in chunks[-3:]], [False, True, True])
            eq([one.usage.completion_tokens for one in chunks[-2:]], [TOKENS, TOKENS])


@check
def stream_of_a_backend_that_reports_usage_with_the_finish_reason():
    for form in FORMS:
        chunks = chat_stream("with-the-reason", form)
        ends_with_the_reason(chunks)
        eq([one for one in chunks if one.usage is not None], [chunks[-1]])
        eq(chunks[-1].usage.completion_tokens, TOKENS)
        chunks = chat_stream("with-the-reason", form, **WITH_USAGE)
        ends_with_usage(chunks, "with-the-reason")
        eq([one for one in chunks if one.usage is not None], chunks[-2:])
