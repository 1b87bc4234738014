"""Errors have the class that programs expect and the message of the backend."""

import anthropic

from anthropic_client import message_request, client
from harness import check, eq, fails

KINDS = [
    (400, anthropic.BadRequestError, "invalid_request_error"),
    (404, anthropic.NotFoundError, "not_found_error"),
    (429, anthropic.RateLimitError, "rate_limit_error"),
    (500, anthropic.InternalServerError, "api_error"),
    (529, anthropic.OverloadedError, "overloaded_error"),
]


@check
def errors_of_a_backend():
    for status, kind, name in KINDS:
        for more in ({}, {"stream": True}):
            request = message_request(f"[status {status}]", **more)
            error = fails(kind, lambda: client.messages.create(**request))
            eq((error.status_code, error.type), (status, name))
            eq(error.body["error"]["message"], "This is what you asked for.")
            eq(error.body["request_id"], "req_of_the_backend")


@check
def rejected_key_of_a_backend_is_not_the_clients():
    request = message_request("[status 401]")
    error = fails(anthropic.InternalServerError, lambda: client.messages.create(**request))
    eq((error.status_code, error.type), (502, "api_error"))


@check
def rate_limit_error_has_retry_after():
    error = fails(anthropic.RateLimitError, lambda: client.messages.create(**message_request("[status 429]")))
    eq(error.response.headers["retry-after"], "7")


@check(answered_here=3)
def unknown_model_is_an_error_with_the_models():
    request = message_request(model="claude-99")
    counting = {name: request[name] for name in ("model", "messages")}
    for act in [
        lambda: client.messages.create(**request),
        lambda: client.messages.create(**request, stream=True),
        lambda: client.messages.count_tokens(**counting),
    ]:
        error = fails(anthropic.NotFoundError, act)
        eq((error.body["type"], error.type), ("error", "not_found_error"))
        message = error.body["error"]["message"]
        assert "`claude-99`" in message and "acme/chat:7b, chat, embed" in message, message
        eq(error.error_code, "model_not_found")
        assert error.body["request_id"], error.body
        eq(error.response.headers["x-request-id"], error.body["request_id"])


@check(answered_here=1)
def error_of_the_server_has_the_clients_request_id():
    request = message_request(model="claude-99", extra_headers={"x-request-id": "mine"})
    error = fails(anthropic.NotFoundError, lambda: client.messages.create(**request))
    eq(error.body["request_id"], "mine")
    assert "x-llmlb-backend" not in error.response.headers
