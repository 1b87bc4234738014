"""Errors are of the class that programs wait for, and say what the backend said."""

import openai

from harness import check, eq, fails
from openai_client import client, says

KINDS = [
    (400, openai.BadRequestError),
    (409, openai.ConflictError),
    (422, openai.UnprocessableEntityError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
]


def ask(status, **more):
    messages = says(f"[status {status}]")
    return client.chat.completions.create(model="chat", messages=messages, **more)


@check(may_be_sent_again=True)
def errors_of_a_backend():
    for status, kind in KINDS:
        for more in ({}, {"stream": True}):
            error = fails(kind, lambda: ask(status, **more))
            eq((error.status_code, error.code), (status, "as_you_wish"))
            eq(error.body["message"], "This is what you asked for.")


@check
def rejected_key_of_a_backend_is_not_the_clients():
    for status in (401, 403):
        error = fails(openai.InternalServerError, lambda: ask(status))
        eq((error.status_code, error.code), (502, "backend_auth"))


@check
def too_many_requests_says_when_to_come_back():
    eq(fails(openai.RateLimitError, lambda: ask(429)).response.headers["retry-after"], "7")


@check
def an_only_backend_that_is_busy():
    messages = says("[status 503]")
    create = client.chat.completions.create
    error = fails(openai.InternalServerError, lambda: create(model="other", messages=messages))
    eq((error.status_code, error.code), (503, "as_you_wish"))


@check
def errors_have_an_id():
    error = fails(openai.BadRequestError, lambda: ask(400))
    assert error.request_id, dict(error.response.headers)
    eq(error.response.headers["x-llmlb-backend"], "first")
    assert error.response.headers["x-upstream-request-id"].startswith("req_first_")


@check(answered_here=6)
def a_model_that_is_not_there():
    for act in [
        lambda: client.chat.completions.create(model="gpt-99", messages=says("Hello")),
        lambda: client.chat.completions.create(model="gpt-99", messages=says("x"), stream=True),
        lambda: client.completions.create(model="gpt-99", prompt="Hello"),
        lambda: client.embeddings.create(model="gpt-99", input="Hello"),
        lambda: client.responses.create(model="gpt-99", input="Hello"),
        lambda: client.images.generate(model="gpt-99", prompt="Hello"),
    ]:
        error = fails(openai.NotFoundError, act)
        eq((error.code, error.param, error.type), ("model_not_found", "model", "invalid_request_error"))
        assert "`gpt-99`" in error.message and "acme/chat:7b, chat, embed" in error.message, error


@check(answered_here=1)
def a_refusal_has_an_id():
    ask = {"model": "gpt-99", "input": "Hello", "extra_headers": {"x-request-id": "mine"}}
    error = fails(openai.NotFoundError, lambda: client.embeddings.create(**ask))
    eq(error.request_id, "mine")
    assert "x-llmlb-backend" not in error.response.headers
