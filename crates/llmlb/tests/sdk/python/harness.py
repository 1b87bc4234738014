"""Harness of the checks of the Python clients.

After each check, every request that a client sent must have arrived at one backend, once, byte for
byte, and without the client's key.
"""

import asyncio
import inspect
import json
import sys
import time
import traceback
import urllib.request

SETUP = json.loads(sys.argv[1])
URL = SETUP["url"]
KEY = "key-of-the-client"
# Default text of a backend, and its number of tokens.
TEXT = 'Grüße, 世界 🌍.\n\ndata: [DONE] "usage" {} \\!'
TOKENS = 12
# Forms of a response, requested in the prompt: plain, in small pieces, compressed, both.
FORMS = ["", "[ragged]", "[gzip]", "[gzip] [ragged]"]

# Headers that are not forwarded unchanged.
KEYS = ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"]
NOT_FORWARDED = {*KEYS, "host", "connection", "accept-encoding", "content-length", "transfer-encoding"}

_checks = []
_sent = []
_counts = dict.fromkeys(SETUP["backends"], 0)


def check(function=None, *, answered_here=0, may_be_retried=False):
    """Marks a check. `answered_here`: number of requests that the server itself responds to.
    `may_be_retried`: a backend rejects the option that the server adds to a request."""

    def mark(function):
        _checks.append((function, answered_here, may_be_retried))
        return function

    return mark(function) if function else mark


def run():
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    chosen = [entry for entry in _checks if only in entry[0].__name__]
    failed = []
    for function, answered_here, may_be_retried in chosen:
        try:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(result)
            everything_arrived(answered_here, may_be_retried)
            # The last line of the output shows which check hangs.
            print(f"passed: {function.__name__}", flush=True)
        except Exception as error:
            report(function.__name__, error)
            failed.append(function.__name__)
            received()
            _sent.clear()
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} checks failed: {', '.join(failed)}")
    print(f"all {len(chosen)} checks passed")


def report(name, error):
    """Prints the error of a check and its lines in the checks."""
    print(f"FAILED: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.startswith(sys.path[0]) and frame.name not in ("run", "eq", "fails"):
            file = frame.filename.removeprefix(sys.path[0])
            print(f"  {file}:{frame.lineno}: {frame.line}", file=sys.stderr)


def eq(found, expected):
    if found != expected:
        raise AssertionError(f"\n  found    {found!r}\n  expected {expected!r}")


def fails(kind, act):
    """Returns the error of an act, which must be of exactly this class."""
    try:
        result = act()
    except kind as error:
        eq(type(error).__name__, kind.__name__)
        return error
    raise AssertionError(f"no {kind.__name__} but {result!r}")


def record(request):
    """Records a request that a client sends."""
    _record(request, request.read())


async def record_async(request):
    _record(request, await request.aread())


def _record(request, body):
    headers = {name.lower(): value for name, value in request.headers.items()}
    _sent.append((request.method, request.url.raw_path.decode(), headers, body))


def query(backend, resource):
    with urllib.request.urlopen(f"{SETUP['backends'][backend]}/mock/{resource}") as answer:
        return json.load(answer)


def received():
    """Returns the requests that backends received since the last call."""
    arrivals = []
    for backend, count in _counts.items():
        arrived = query(backend, f"requests?after={count}")
        _counts[backend] += len(arrived)
        for request in arrived:
            request["backend"] = backend
            request["body"] = bytes.fromhex(request["body"])
            arrivals.append(request)
    return arrivals


def produced(backend):
    """Returns the ledger entry of the last request of a backend."""
    return query(backend, "produced")[-1]


def until_broken(backend):
    """Waits until a backend has noticed that its connection is closed."""
    deadline = time.monotonic() + 30
    while produced(backend)["state"] != "broken":
        assert time.monotonic() < deadline, f"the backend still sends: {produced(backend)}"
        time.sleep(0.005)


def everything_arrived(answered_here=0, may_be_retried=False):
    """Checks that the requests sent since the last call arrived, and returns their backends."""
    arrivals = received()
    sent = [entry for entry in _sent if not (entry[0] == "GET" and entry[1].startswith("/v1/models"))]
    _sent.clear()
    matched = []
    for request in arrivals:
        for name, value in request["headers"]:
            assert KEY not in value, f"the client's key arrived at {request['backend']} in {name}"
        match = next((other for other in sent if is_same(other, request)), None)
        if not match and may_be_retried and any(is_same(other, request) for other in matched):
            # The backend rejected the added option; this is the retry without it.
            assert b"include_usage" not in request["body"]
            continue
        assert match, f"no client sent {request['method']} {request['target']} {request['body']}"
        arrived = dict(request["headers"])
        for name, value in match[2].items():
            if name not in NOT_FORWARDED:
                eq((name, arrived.get(name)), (name, value))
        sent.remove(match)
        matched.append(match)
    eq(len(sent), answered_here)
    return [request["backend"] for request in arrivals]


def is_same(sent, arrived):
    method, target, _, body = sent
    if (method, target) != (arrived["method"], arrived["target"]):
        return False
    if body == arrived["body"]:
        return True
    # The server may add only the usage option, and only to these requests.
    may_differ = target.endswith("/completions") and b"include_usage" in arrived["body"]
    return may_differ and without_option(body) == without_option(arrived["body"])


def without_option(body):
    request = json.loads(body)
    options = request.pop("stream_options", None) or {}
    options.pop("include_usage", None)
    return {**request, "stream_options": options}
