"""Errors have the class that programs expect and the message of the backend."""

import openai

from harness import check, eq, fails
from openai_client import client, user_message

KINDS = [
    (400, openai.BadRequestError),
    (409, openai.ConflictError),
    (422, openai.UnprocessableEntityError),
    (429, openai.RateLimitError),
    (500, openai.InternalServerError),
]


def request_status(status, **more):
    messages = user_message(f"[status {status}]")
    return client.chat.completions.create(model="chat", messages=messages, **more)


@check(may_be_retried=True)
def errors_of_a_backend():
    for status, kind in KINDS:
        for more in ({}, {"stream": True}):
            error = fails(kind, lambda: request_status(status, **more))
            eq((error.status_code, error.code), (status, "as_you_wish"))
            eq(error.body["message"], "This is what you asked for.")


@check
def rejected_key_of_a_backend_is_not_the_clients():
    for status in (401, 403):
        error = fails(openai.InternalServerError, lambda: request_status(status))
        eq((error.status_code, error.code), (502, "backend_auth"))


@check
def rate_limit_error_has_retry_after():
    eq(fails(openai.RateLimitError, lambda: request_status(429)).response.headers["retry-after"], "7")


@check
def busy_response_of_the_only_backend_is_forwarded():
    messages = user_message("[status 503]")
    create = client.chat.completions.create
    error = fails(openai.InternalServerError, lambda: create(model="other", messages=messages))
    eq((error.status_code, error.code), (503, "as_you_wish"))


@check
def errors_have_a_request_id():
    error = fails(openai.BadRequestError, lambda: request_status(400))
    assert error.request_id, dict(error.response.headers)
    eq(error.response.headers["x-llmlb-backend"], "first")
    assert error.response.headers["x-upstream-request-id"].startswith("req_first_")


@check(answered_here=6)
def unknown_model_is_an_error_with_the_models():
    for act in [
        lambda: client.chat.completions.create(model="gpt-99", messages=user_message("Hello")),
        lambda: client.chat.completions.create(model="gpt-99", messages=user_message("x"), stream=True),
        lambda: client.completions.create(model="gpt-99", prompt="Hello"),
        lambda: client.embeddings.create(model="gpt-99", input="Hello"),
        lambda: client.responses.create(model="gpt-99", input="Hello"),
        lambda: client.images.generate(model="gpt-99", prompt="Hello"),
    ]:
        error = fails(openai.NotFoundError, act)
        eq((error.code, error.param, error.type), ("model_not_found", "model", "invalid_request_error"))
        assert "`gpt-99`" in error.message and "acme/chat:7b, chat, embed" in error.message, error


@check(answered_here=1)
def error_of_the_server_has_the_clients_request_id():
    fields = {"model": "gpt-99", "input": "Hello", "extra_headers": {"x-request-id": "mine"}}
    error = fails(openai.NotFoundError, lambda: client.embeddings.create(**fields))
    eq(error.request_id, "mine")
    assert "x-llmlb-backend" not in error.response.headers
