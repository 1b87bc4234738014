"""Plain requests, as clients send them. All readers agree on them."""

import json

import forms
import json_bodies
import names
import paths
from case import Case

JSON_TYPES = [
    b"application/json",
    b"application/json",
    b"application/json",
    b"application/json; charset=utf-8",
    b"application/json;charset=UTF-8",
    b"application/x-www-form-urlencoded",
    None,
    b"Application/JSON",
    b"application/vnd.api+json",
    b"text/plain",
    b'application/json; charset="utf-8"',
    b"text/json",
]
CLIENT_HEADERS = [
    [b"User-Agent: curl/8.5.0", b"Accept: */*"],
    [
        b"User-Agent: OpenAI/Python 2.1.0",
        b"X-Stainless-Lang: python",
        b"Accept: application/json",
        b"Accept-Encoding: gzip, deflate",
    ],
    [b"user-agent: OpenAI/JS 6.0.0", b"x-stainless-retry-count: 0", b"accept-language: *", b"sec-fetch-mode: cors"],
    [b"anthropic-version: 2023-06-01", b"Accept: application/json"],
    [],
]


def endpoints_by_weight(endpoints):
    weights = {"json": 4, "form": 9, "query": 3, "nothing": 1}
    return [weights[endpoint["reads"]] for endpoint in endpoints]


def request(rng, number, endpoints):
    endpoint = rng.choices(endpoints, endpoints_by_weight(endpoints))[0]
    case = Case(number, endpoint)
    case.headers = list(rng.choice(CLIENT_HEADERS))
    model = rng.choice(names.PLAIN)
    if rng.random() < 0.1 and endpoint["reads"] != "query":
        case.query = paths.plain_query(rng, case)
    if endpoint["reads"] == "query":
        case.query = rng.choice([b"", b"x=1&"]) + b"model=" + quote(model) + rng.choice([b"", b"&y=2"])
    elif endpoint["reads"] == "json":
        case.members = json_bodies.plain(rng, endpoint, model)
        case.content_type = rng.choice(JSON_TYPES)
    elif endpoint["reads"] == "form":
        case.form = rng.choice(forms.CLIENTS)(rng, model.encode())
    elif endpoint["method"] == "POST":
        case.content_type, case.body = upload(rng)
    if rng.random() < 0.25:
        case.chunks = rng.choice([1, 7, 100, 4096, 1 << 20])
    return case


def quote(text):
    safe = b"abcdefghijklmnopqrstuvwxyz0123456789-._~/:"
    return b"".join(bytes([byte]) if byte in safe else b"%%%02X" % byte for byte in text.encode())


def upload(rng):
    if rng.random() < 0.5:
        return b"application/json", json.dumps({"input_file_id": "file-1", "model": "beta"}).encode()
    form = forms.curl(rng, b"beta")
    form.parts[2].headers = [forms.disposition(b"purpose")]
    return form.kind, form.encoded()
