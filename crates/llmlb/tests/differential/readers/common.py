"""What the readers written in Python share: the endpoints and the shape of a reading."""

import json
import pathlib
import socket
import sys

ENDPOINTS = json.loads((pathlib.Path(__file__).parent.parent / "endpoints.json").read_text())


def model_of(document):
    """Returns the `model` of a JSON request. Raises ValueError where a typed server rejects it."""
    if not isinstance(document, dict):
        raise ValueError("not an object")
    return text_or_nothing(document.get("model"))


def text_or_nothing(value):
    if value is not None and not isinstance(value, str):
        raise ValueError("the model is not a string")
    return value


def reading(endpoint, model):
    """Returns the response body: the endpoint that serves the request, and the model read."""
    return json.dumps({"endpoint": endpoint["path"], "model": model}).encode()


def listener():
    """Returns a listening socket, and announces its port to the process that started this one."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listening.getsockname()[1], flush=True)
    return listening


def exit_with_parent():
    """Blocks until the process that started this one has closed the pipe to it."""
    sys.stdin.buffer.read()
