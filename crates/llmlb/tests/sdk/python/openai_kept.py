"""What a backend keeps for its clients: only it has it."""

import io
from itertools import product

import openai

from harness import TEXT, TOKENS, WAYS, check, eq, fails, produced
from openai_client import client

# A file that looks like anything but a file.
BYTES = bytes(range(256)) * 400 + b'\r\n--boundary\r\n{"model":"nobody"}\r\n\r\n' + bytes(3)
# How often something is done that could succeed by luck, with two backends to choose from.
OFTEN = 8


@check
def responses():
    answer = client.responses.create(model="chat", input="Say hello", max_output_tokens=50)
    eq((answer.status, answer.output_text), ("completed", TEXT))
    made = produced("first")
    usage = answer.usage
    eq((usage.input_tokens, usage.output_tokens), (made["prompt"], TOKENS))
    eq(usage.input_tokens_details.cached_tokens, made["cached"])


@check
def responses_streamed():
    for way in WAYS:
        stream = client.responses.create(model="other", input=f"Hello {way}", stream=True)
        events = list(stream)
        eq([event.sequence_number for event in events], list(range(TOKENS + 8)))
        eq([events[0].type, events[-1].type], ["response.created", "response.completed"])
        deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
        eq("".join(deltas), TEXT)
        eq(events[-1].response.usage.output_tokens, TOKENS)
    with client.responses.stream(model="chat", input="Hello") as stream:
        eq(stream.get_final_response().output_text, TEXT)


@check
def a_response_is_had_again_from_whom_it_came():
    for model, text in product(["chat", "other"], ["Remember this", "[gzip] this, too"]):
        made = client.responses.create(model=model, input=text)
        eq(client.responses.retrieve(made.id).output_text, TEXT)
        items = client.responses.input_items.list(made.id)
        eq([item.content[0].text for item in items], [text])
        client.responses.delete(made.id)
        error = fails(openai.NotFoundError, lambda: client.responses.retrieve(made.id))
        assert f"'{made.id}' not found" in error.message, error


@check
def a_streamed_response_is_had_again_from_whom_it_came():
    for model, way in product(["chat", "other"], WAYS):
        events = list(client.responses.create(model=model, input=f"Hello {way}", stream=True))
        made = events[0].response.id
        eq(client.responses.retrieve(made).output_text, TEXT)


@check
def a_conversation_goes_on_where_it_began():
    for model in ["chat", "other"]:
        for _ in range(OFTEN):
            before = client.responses.create(model=model, input="Begin").id
            for _ in range(2):
                answer = client.responses.create(
                    model="shared", input="Go on", previous_response_id=before
                )
                eq(answer.previous_response_id, before)
                before = answer.id


@check
def a_conversation_that_nobody_knows():
    ask = {"model": "chat", "input": "Go on", "previous_response_id": "resp_nobody"}
    error = fails(openai.BadRequestError, lambda: client.responses.create(**ask))
    eq(error.code, "previous_response_not_found")


@check
def files():
    kept = client.files.create(file=("ä file.bin", io.BytesIO(BYTES)), purpose="assistants")
    eq((kept.bytes, kept.purpose, kept.object), (len(BYTES), "assistants", "file"))
    eq(client.files.retrieve(kept.id).id, kept.id)
    eq(client.files.content(kept.id).content, BYTES)
    assert kept.id in [one.id for one in client.files.list()]
    eq(client.files.delete(kept.id).deleted, True)
    error = fails(openai.NotFoundError, lambda: client.files.retrieve(kept.id))
    assert "No such File object" in error.message, error


@check
def a_file_for_a_model_goes_where_the_model_is():
    for _ in range(2):
        kept = client.files.create(
            file=("b.jsonl", BYTES), purpose="batch", extra_query={"model": "other"}
        )
        assert kept.id.startswith("file-second_"), kept.id
        eq(client.files.content(kept.id).content, BYTES)
        eq(client.files.retrieve(kept.id).bytes, len(BYTES))
        eq(client.files.delete(kept.id).deleted, True)


@check
def a_file_is_found_though_the_answer_was_compressed():
    content = b"[gzip]" + BYTES
    kept = client.files.create(
        file=("c.jsonl", content), purpose="batch", extra_query={"model": "other"}
    )
    eq(client.files.content(kept.id).content, content)
