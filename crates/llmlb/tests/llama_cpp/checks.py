"""Checks llmlb in front of two real llama.cpp servers: checks.py LLMLB [--keep]

Each check prints its name and ok, or FAILED with a trace. Exits 1 if any check fails.
"""

import collections
import concurrent.futures
import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.error
import urllib.request

import anthropic
import openai

import tiny_model

HERE = os.path.dirname(os.path.abspath(__file__))
# A response of random tokens may end early by chance.
FULL_LENGTH = {"ignore_eos": True}


def free_port():
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return listener.getsockname()[1]


def eventually(check, condition, seconds=30):
    """Polls the check until it returns a true value."""
    deadline = time.monotonic() + seconds
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.05)


def get(url):
    """Returns the JSON document at this address, or None if the server does not respond."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.load(response)
    except (OSError, urllib.error.URLError):
        return None


class World:
    """Two llama.cpp servers with the same model, and llmlb in front of them."""

    def __init__(self, llmlb):
        self.dir = tempfile.mkdtemp(prefix="llama-cpp-")
        self.processes = {}
        self.ports = {"one": free_port(), "two": free_port()}
        self.model = os.path.join(self.dir, "tiny.gguf")
        tiny_model.write(self.model)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = os.path.join(self.dir, "llmlb.toml")
        with open(self.config, "w") as file:
            for name, port in self.ports.items():
                file.write(f'[[backend]]\nname = "{name}"\nurl = "http://127.0.0.1:{port}"\n')
        os.chmod(self.config, 0o600)
        self.data = os.path.join(self.dir, "data")
        self.llmlb = os.path.abspath(llmlb)
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("LLMLB_")}
        self.env |= {"LLMLB_DATA_DIR": self.data, "LLMLB_LOCK_DIR": os.path.join(self.dir, "locks")}

    def start_all(self):
        for name in self.ports:
            self.start_llama(name)
        self.start("llmlb", [self.llmlb, "serve", "-p", str(self.port), "--config", self.config])
        eventually(lambda: self.up() == 2, "both backends are up")

    def start(self, name, arguments):
        log = open(self.log_path(name), "a")
        self.processes[name] = subprocess.Popen(arguments, env=self.env, stdout=log, stderr=log)

    def start_llama(self, name):
        port = self.ports[name]
        self.start(name, [sys.executable, os.path.join(HERE, "server.py"), self.model, str(port)])
        eventually(lambda: get(f"http://127.0.0.1:{port}/health"), f"llama.cpp server {name}")

    def log_path(self, name):
        return os.path.join(self.dir, f"{name}.log")

    def log(self, name="llmlb"):
        with open(self.log_path(name), errors="replace") as file:
            return file.read()

    def status(self):
        return get(f"{self.url}/status") or {}

    def up(self):
        return sum(backend["up"] for backend in self.status().get("backends", []))

    def records(self):
        """Returns all usage records by request id, read from the data directory."""
        found = []
        for path in glob.glob(os.path.join(self.data, "_staging", "*.jsonl*")):
            with open(path) as file:
                for line in file:
                    if line.startswith('{"id"'):
                        found.append(json.loads(line)["record"])
        for path in glob.glob(os.path.join(self.data, "*", "*.json")):
            with open(path) as file:
                text = file.read()
            if '"idempotency_key"' in text:
                found += json.loads(text)["records"]
        return {record["request_id"]: record for record in found}

    def record(self, request_id):
        return eventually(lambda: self.records().get(request_id), f"a record of {request_id}")

    def busy_slots(self):
        slots = [get(f"http://127.0.0.1:{port}/slots") or [] for port in self.ports.values()]
        return sum(slot["is_processing"] for server in slots for slot in server)

    def close(self, keep):
        for process in self.processes.values():
            process.kill()
            process.wait(60)
        if keep:
            print(f"kept: {self.dir}")
        else:
            shutil.rmtree(self.dir)


def client(world):
    return openai.OpenAI(base_url=f"{world.url}/v1", api_key="unused", max_retries=0, timeout=60)


def chat(text):
    """Returns the fields of a chat request."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]}


def assert_tokens(record, usage):
    """Asserts that the record has the figures that llama.cpp reported."""
    recorded = (record["prompt_tokens"], record["completion_tokens"], record["tokens_from"])
    assert recorded == (usage.prompt_tokens, usage.completion_tokens, "reported"), (recorded, usage)


def raw(world, data, seconds=20):
    """Sends these bytes. Returns everything that is received until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", world.port), timeout=seconds) as connection:
        connection.sendall(data)
        received = b""
        with contextlib.suppress(socket.timeout, ConnectionResetError):
            while piece := connection.recv(65536):
                received += piece
        return received


def models_are_listed_once_with_their_context(world):
    models = [model.model_dump() for model in client(world).models.list()]
    assert [model["id"] for model in models] == ["tiny"], models


def chat_is_served_and_metered(world):
    response = client(world).chat.completions.with_raw_response.create(
        **chat("hello there"), max_tokens=12, extra_body=FULL_LENGTH
    )
    usage = response.parse().usage
    assert usage.completion_tokens == 12, usage
    assert_tokens(world.record(response.headers["x-request-id"]), usage)


def stream_has_no_usage_unless_the_client_requests_it(world):
    response = client(world).chat.completions.with_raw_response.create(
        **chat("hello stream"), max_tokens=12, stream=True, extra_body=FULL_LENGTH
    )
    chunks = list(response.parse())
    assert all(chunk.usage is None for chunk in chunks), "usage without stream_options"
    assert all(chunk.choices for chunk in chunks), "a chunk without choices"
    record = world.record(response.headers["x-request-id"])
    assert (record["completion_tokens"], record["tokens_from"]) == (12, "reported"), record


def stream_has_usage_if_the_client_requests_it(world):
    response = client(world).chat.completions.with_raw_response.create(
        **chat("hello usage"), max_tokens=12, stream=True, stream_options={"include_usage": True}, extra_body=FULL_LENGTH
    )
    usage = [chunk.usage for chunk in response.parse() if chunk.usage]
    assert len(usage) == 1, usage
    assert_tokens(world.record(response.headers["x-request-id"]), usage[0])


def completion_is_metered(world):
    response = client(world).completions.with_raw_response.create(
        model="tiny", prompt="once upon a time", max_tokens=9, extra_body=FULL_LENGTH
    )
    assert_tokens(world.record(response.headers["x-request-id"]), response.parse().usage)


def anthropic_message_is_metered(world):
    claude = anthropic.Anthropic(base_url=world.url, api_key="unused", max_retries=0, timeout=60)
    response = claude.messages.with_raw_response.create(
        model="tiny", max_tokens=9, messages=[{"role": "user", "content": "hello claude"}], extra_body=FULL_LENGTH
    )
    usage = response.parse().usage
    record = world.record(response.headers["x-request-id"])
    assert (record["completion_tokens"], record["tokens_from"]) == (usage.output_tokens, "reported"), (record, usage)


def response_is_metered(world):
    response = client(world).responses.with_raw_response.create(
        model="tiny", input="hello response", max_output_tokens=9, extra_body=FULL_LENGTH
    )
    usage = response.parse().usage
    record = world.record(response.headers["x-request-id"])
    assert (record["completion_tokens"], record["tokens_from"]) == (usage.output_tokens, "reported"), (record, usage)


def error_for_an_unknown_model_lists_the_known_ones(world):
    try:
        client(world).chat.completions.create(**(chat("x") | {"model": "absent"}))
        raise AssertionError("served")
    except openai.NotFoundError as error:
        assert "tiny" in str(error), error


def concurrent_requests_get_their_own_responses_from_both_servers(world):
    def send(number):
        count = 4 + number % 9
        response = client(world).chat.completions.with_raw_response.create(
            **chat(f"question {number} " + "of many " * (number % 40)), max_tokens=count, extra_body=FULL_LENGTH
        )
        usage = response.parse().usage
        assert usage.completion_tokens == count, (usage, count)
        return response.headers["x-llmlb-backend"], response.headers["x-request-id"], usage

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(send, range(80)))
    shares = collections.Counter(backend for backend, _, _ in results)
    assert set(shares) == set(world.ports) and min(shares.values()) >= 10, shares
    for _, request_id, usage in results:
        assert_tokens(world.record(request_id), usage)


def client_disconnect_frees_the_slot(world):
    body = json.dumps(chat("a long story") | {"max_tokens": 1900, "stream": True} | FULL_LENGTH)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", world.port)) as connection:
        connection.sendall((head + body).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 200"), "no stream"
    eventually(lambda: world.busy_slots() == 0, "all slots are free again", 5)


def unread_body_is_not_parsed_as_the_next_request(world):
    """A server may leave a body unread and parse it as the next request."""
    hidden_body = json.dumps(chat("hidden") | {"max_tokens": 5, "seed": 4711})
    hidden = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(hidden_body)}\r\n\r\n{hidden_body}"
    )
    carriers = [
        ("GET", "/v1/models", ""),
        ("POST", "/v1/chat/completions", "range: bytes=x\r\n"),
        ("POST", "/v1/chat/completions", "range: bytes=9-1\r\n"),
        ("POST", "/v1/chat/completions", "accept: /;q=x\r\n"),
        ("DELETE", "/v1/models/tiny", ""),
        ("POST", "/v1/unknown", ""),
    ]
    for method, path, fields in carriers * 3:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}"
        raw(world, f"{head}content-length: {len(hidden)}\r\n\r\n{hidden}".encode())
        for count in (3, 6):
            response = client(world).chat.completions.create(**chat("victim"), max_tokens=count, extra_body=FULL_LENGTH)
            assert response.usage.completion_tokens == count, (method, path, fields, response)


def model_list_that_only_changes_its_time_is_logged_once(world):
    # Probes are 5 s apart, and llama.cpp writes the current time into its list.
    time.sleep(11)
    lines = [line for line in world.log().splitlines() if "serves" in line]
    assert len(lines) <= 2, lines


def requests_are_retried_when_a_server_is_killed(world):
    def send(number):
        return client(world).chat.completions.create(**chat(f"number {number}"), max_tokens=20, extra_body=FULL_LENGTH)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(send, number) for number in range(20)]
        world.processes["two"].kill()
        world.processes["two"].wait()
        futures += [pool.submit(send, number) for number in range(20, 60)]
        failed = [error for error in (future.exception() for future in futures) if error]
    # A request whose response has begun is not retried. Each client has at most one such request.
    assert len(failed) <= 4, failed
    # The address is reusable at once, and llmlb finds the restarted server.
    world.start_llama("two")
    eventually(lambda: world.up() == 2, "the second backend is up again")


def books_balance(world):
    process = world.processes["llmlb"]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, process.returncode
    verified = subprocess.run([world.llmlb, "usage", "verify"], env=world.env, capture_output=True, text=True)
    assert verified.returncode == 0, verified


CHECKS = [
    models_are_listed_once_with_their_context,
    chat_is_served_and_metered,
    stream_has_no_usage_unless_the_client_requests_it,
    stream_has_usage_if_the_client_requests_it,
    completion_is_metered,
    anthropic_message_is_metered,
    response_is_metered,
    error_for_an_unknown_model_lists_the_known_ones,
    concurrent_requests_get_their_own_responses_from_both_servers,
    client_disconnect_frees_the_slot,
    unread_body_is_not_parsed_as_the_next_request,
    model_list_that_only_changes_its_time_is_logged_once,
    requests_are_retried_when_a_server_is_killed,
    books_balance,
]


def main():
    keep, failed = "--keep" in sys.argv, 0
    world = World(sys.argv[1])
    try:
        world.start_all()
        for check in CHECKS:
            try:
                check(world)
                print(f"ok      {check.__name__}", flush=True)
            except Exception:
                failed += 1
                print(f"FAILED  {check.__name__}\n{traceback.format_exc()}", flush=True)
    finally:
        world.close(keep or failed)
    print(f"{len(CHECKS) - failed} passed, {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
