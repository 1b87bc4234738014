"""Code shared by the readers in Python: the endpoints and the format of a reading."""

import json
import pathlib
import socket
import sys

ENDPOINTS = json.loads((pathlib.Path(__file__).parent.parent / "endpoints.json").read_text())


def model_of(document):
    """Returns the `model` of a JSON request. Raises ValueError if a typed server would reject it."""
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
    """Returns a listening socket and prints its port for the parent process."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(listening.getsockname()[1], flush=True)
    return listening


def exit_with_parent():
    """Blocks until the parent process has closed its pipe to this process."""
    sys.stdin.buffer.read()
