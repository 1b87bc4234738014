"""Responses, conversations and files that a backend stores: requests for them must reach that backend."""

import io
from itertools import product

import openai

from harness import TEXT, TOKENS, FORMS, check, eq, fails, produced
from openai_client import client

# Content of a file that looks like parts of a form and JSON.
BYTES = bytes(range(256)) * 400 + b'\r\n--boundary\r\n{"model":"unserved"}\r\n\r\n' + bytes(3)
# Number of repetitions of an act that one of two backends could serve by chance.
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
    for form in FORMS:
        stream = client.responses.create(model="other", input=f"Hello {form}", stream=True)
        events = list(stream)
        eq([event.sequence_number for event in events], list(range(TOKENS + 8)))
        eq([events[0].type, events[-1].type], ["response.created", "response.completed"])
        deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
        eq("".join(deltas), TEXT)
        eq(events[-1].response.usage.output_tokens, TOKENS)
    with client.responses.stream(model="chat", input="Hello") as stream:
        eq(stream.get_final_response().output_text, TEXT)


@check
def response_is_retrieved_from_the_backend_that_created_it():
    for model, text in product(["chat", "other"], ["Remember this", "[gzip] this, too"]):
        made = client.responses.create(model=model, input=text)
        eq(client.responses.retrieve(made.id).output_text, TEXT)
        items = client.responses.input_items.list(made.id)
        eq([item.content[0].text for item in items], [text])
        client.responses.delete(made.id)
        error = fails(openai.NotFoundError, lambda: client.responses.retrieve(made.id))
        assert f"'{made.id}' not found" in error.message, error


@check
def streamed_response_is_retrieved_from_the_backend_that_created_it():
    for model, form in product(["chat", "other"], FORMS):
        events = list(client.responses.create(model=model, input=f"Hello {form}", stream=True))
        made = events[0].response.id
        eq(client.responses.retrieve(made).output_text, TEXT)


@check
def conversation_continues_at_the_backend_where_it_began():
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
def unknown_previous_response_is_an_error():
    fields = {"model": "chat", "input": "Go on", "previous_response_id": "resp_unknown"}
    error = fails(openai.BadRequestError, lambda: client.responses.create(**fields))
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
def file_with_a_model_goes_to_a_backend_with_the_model():
    for _ in range(2):
        kept = client.files.create(
            file=("b.jsonl", BYTES), purpose="batch", extra_query={"model": "other"}
        )
        assert kept.id.startswith("file-second_"), kept.id
        eq(client.files.content(kept.id).content, BYTES)
        eq(client.files.retrieve(kept.id).bytes, len(BYTES))
        eq(client.files.delete(kept.id).deleted, True)


@check
def file_is_found_after_a_compressed_upload_response():
    content = b"[gzip]" + BYTES
    kept = client.files.create(
        file=("c.jsonl", content), purpose="batch", extra_query={"model": "other"}
    )
    eq(client.files.content(kept.id).content, content)
