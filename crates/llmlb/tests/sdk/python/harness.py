"""What the checks of the Python clients share.

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

ABOUT = json.loads(sys.argv[1])
URL = ABOUT["url"]
KEY = "key-of-the-client"
# What a backend says, unless told otherwise; and in how many tokens.
TEXT = 'Grüße, 世界 🌍.\n\ndata: [DONE] "usage" {} \\!'
TOKENS = 12
# Ways in which an answer may come: as it is, cut anywhere, compressed, both.
WAYS = ["", "[ragged]", "[gzip]", "[gzip] [ragged]"]

# Headers that concern the client and the server alone.
KEYS = ["authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"]
BETWEEN_TWO = {*KEYS, "host", "connection", "accept-encoding", "content-length", "transfer-encoding"}

_checks = []
_sent = []
_seen = dict.fromkeys(ABOUT["backends"], 0)


def check(function=None, *, answered_here=0, may_be_sent_again=False):
    """Marks a check. `answered_here`: how many requests the server itself answers.
    `may_be_sent_again`: a backend refuses what the server added to a request."""

    def mark(function):
        _checks.append((function, answered_here, may_be_sent_again))
        return function

    return mark(function) if function else mark


def run():
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    chosen = [one for one in _checks if only in one[0].__name__]
    failed = []
    for function, answered_here, may_be_sent_again in chosen:
        try:
            result = function()
            if inspect.isawaitable(result):
                asyncio.run(result)
            everything_arrived(answered_here, may_be_sent_again)
            # Behind the last of these is where it hangs, if it does.
            print(f"holds: {function.__name__}", flush=True)
        except Exception as error:
            tell(function.__name__, error)
            failed.append(function.__name__)
            received()
            _sent.clear()
    if failed:
        sys.exit(f"{len(failed)} of {len(chosen)} checks failed: {', '.join(failed)}")
    print(f"all {len(chosen)} checks hold")


def tell(name, error):
    """Says what failed, and where in the checks."""
    print(f"FAILED: {name}: {type(error).__name__}: {error}", file=sys.stderr)
    for place in traceback.extract_tb(error.__traceback__):
        if place.filename.startswith(sys.path[0]) and place.name not in ("run", "eq", "fails"):
            file = place.filename.removeprefix(sys.path[0])
            print(f"  {file}:{place.lineno}: {place.line}", file=sys.stderr)


def eq(found, wanted):
    if found != wanted:
        raise AssertionError(f"\n  found  {found!r}\n  wanted {wanted!r}")


def fails(kind, act):
    """The error of this very class that an act ends with."""
    try:
        result = act()
    except kind as error:
        eq(type(error).__name__, kind.__name__)
        return error
    raise AssertionError(f"no {kind.__name__} but {result!r}")


def remember(request):
    """To be called with every request that a client sends."""
    _note(request, request.read())


async def remember_async(request):
    _note(request, await request.aread())


def _note(request, body):
    headers = {name.lower(): value for name, value in request.headers.items()}
    _sent.append((request.method, request.url.raw_path.decode(), headers, body))


def ask(backend, what):
    with urllib.request.urlopen(f"{ABOUT['backends'][backend]}/mock/{what}") as answer:
        return json.load(answer)


def received():
    """The requests that arrived since the last call."""
    news = []
    for backend, count in _seen.items():
        arrived = ask(backend, f"requests?after={count}")
        _seen[backend] += len(arrived)
        for one in arrived:
            one["backend"] = backend
            one["body"] = bytes.fromhex(one["body"])
            news.append(one)
    return news


def produced(backend):
    """What a backend produced for the last request."""
    return ask(backend, "produced")[-1]


def until_broken(backend):
    """Waits until a backend has noticed that nobody listens."""
    deadline = time.monotonic() + 30
    while produced(backend)["state"] != "broken":
        assert time.monotonic() < deadline, f"it goes on: {produced(backend)}"
        time.sleep(0.005)


def everything_arrived(answered_here=0, may_be_sent_again=False):
    """Looks at what was sent since the last call, and says where it went."""
    news = received()
    sent = [one for one in _sent if not (one[0] == "GET" and one[1].startswith("/v1/models"))]
    _sent.clear()
    matched = []
    for one in news:
        for name, value in one["headers"]:
            assert KEY not in value, f"the client's key arrived at {one['backend']} in {name}"
        match = next((other for other in sent if is_same(other, one)), None)
        if not match and may_be_sent_again and any(is_same(other, one) for other in matched):
            # What was added to it was refused; this is the request as it came.
            assert b"include_usage" not in one["body"]
            continue
        assert match, f"nobody sent {one['method']} {one['target']} {one['body']}"
        arrived = dict(one["headers"])
        for name, value in match[2].items():
            if name not in BETWEEN_TWO:
                eq((name, arrived.get(name)), (name, value))
        sent.remove(match)
        matched.append(match)
    eq(len(sent), answered_here)
    return [one["backend"] for one in news]


def is_same(sent, arrived):
    method, target, _, body = sent
    if (method, target) != (arrived["method"], arrived["target"]):
        return False
    if body == arrived["body"]:
        return True
    # The one thing that the server may add, where it can be added.
    may_differ = target.endswith("/completions") and b"include_usage" in arrived["body"]
    return may_differ and without_option(body) == without_option(arrived["body"])


def without_option(body):
    asked = json.loads(body)
    options = asked.pop("stream_options", None) or {}
    options.pop("include_usage", None)
    return {**asked, "stream_options": options}
