"""Benign variations: unusual requests that every reader accepts as llmlb forwards them.

Each variation changes a case in place and may return a detail for its name.
"""

import json

import forms
import json_bodies
import names
import paths
from plain import JSON_TYPES


def slashes(rng, case):
    """Adds slashes, as from a base URL that ends with a slash. llmlb forwards the plain path."""
    case.path = rng.choice([paths.trailing_slash, paths.repeated_slash])(rng, case.path)


def query(rng, case):
    more = rng.choice([b"a=b", b"api-version=2024-10-21", b"x", b"x=", b"q=%25%20%C3%A9", b"models=beta", b"a=b&a=c"])
    case.query = more if case.query is None else case.query + b"&" + more


def header(rng, case):
    headers = [b"Content-Encoding: identity", b"X-Custom: model=beta", b"Cookie: model=beta", b"Range: bytes=0-3"]
    headers += [
        b"X-Forwarded-Prefix: /v1",
        b"Accept: text/event-stream",
        b"Priority: u=1",
        b"DNT: 1",
        b"Pragma: no-cache",
    ]
    case.headers.append(rng.choice(headers))


def json_type(rng, case):
    kinds = [
        b"application/octet-stream",
        b"text/html",
        b"application/problem+json",
        b"text/plain; charset=UTF-8",
        b"audio/wav",
    ]
    kinds += [
        b"application/json; charset=utf8",
        b"application/json;",
        b"application/json ; charset=utf-8",
        b"*/*",
        b"application/ndjson",
    ]
    kinds += [
        b"application/x-www-form-urlencoded; charset=utf-8",
        b"APPLICATION/JSON; CHARSET=UTF-8",
        b"multipart/form-data; boundary=x",
    ]
    case.content_type = rng.choice(kinds)


def json_name(rng, case):
    """Writes the field name `model` with an escape."""
    pairs, at = case.members.pairs, json_bodies.position_of_model(case.members)
    pairs[at] = (json_bodies.escaped_name(rng), pairs[at][1])


def json_model(rng, case):
    """Writes the model with an escape."""
    name = rng.choice(names.PLAIN)
    at = rng.randrange(len(name))
    value = name[:at] + f"\\u{ord(name[at]):04x}" + name[at + 1 :]
    case.members.pairs[json_bodies.position_of_model(case.members)] = ('"model"', '"' + value + '"')


def json_value(rng, case):
    depth = rng.choice([5, 20, 60, 90])
    values = [
        "1e400",
        "-0",
        "1E+2",
        "9" * 400,
        "[]",
        "{}",
        '""',
        '"\\ud83d\\ude00"',
        '"\\u0000"',
        '"\\/"',
        "[null,true]",
        "-1.5e-7",
    ]
    values += ["[" * depth + "]" * depth, '{"model":' * depth + "1" + "}" * depth, json.dumps("x" * 20000)]
    json_bodies.inserted(
        rng, case.members, (json.dumps(rng.choice(["extra", "models", "modelx", "", "\u00e9"])), rng.choice(values))
    )


def json_layout(rng, case):
    case.body = json.dumps(json.loads(case.members.text()), indent=rng.choice([None, 1, "\t"])).encode()
    case.body = rng.choice([b"", b"\n", b" \t\r\n"]) + case.body + rng.choice([b"", b"\n", b"\r\n\r\n"])


def json_without_a_model(_rng, case):
    json_bodies.model_absent(None, case.members, None)


def form_type(rng, case):
    value = case.form.boundary
    kinds = [
        b'multipart/form-data; boundary="%b"',
        b"multipart/form-data;boundary=%b",
        b"Multipart/Form-Data; Boundary=%b",
    ]
    kinds += [b"multipart/form-data; charset=utf-8; boundary=%b", b"multipart/form-data; boundary=%b; charset=UTF-8"]
    case.form.kind = rng.choice(kinds) % value


def form_boundary(rng, case):
    value = rng.choice(
        [b"a", b"A1-_.", b"x" * 70, b"---------------------------974767299852498929531610575", b"a(b)+c/d:e=f?"]
    )
    case.form.boundary, case.form.kind = value, b'multipart/form-data; boundary="' + value + b'"'


def form_part(rng, case):
    """Adds a part that clients send."""
    parts = [
        forms.Part([forms.disposition(b"prompt")], "Ann\u00e9e\r\n\r\nmodel=beta".encode()),
        forms.Part([forms.disposition(b"prompt")], b""),
        forms.Part([forms.disposition(b"models")], b"beta"),
        forms.Part([forms.disposition(b"temperature"), b"Content-Type: text/plain; charset=utf-8"], b"0.5"),
        forms.Part(
            [forms.disposition(b"image[]", b'; filename="model.png"'), b"Content-Type: image/png"], b"\x89PNG\r\n--\r\n"
        ),
        forms.Part([forms.disposition(b"mask", b'; filename="50%22 x.png"'), b"Content-Type: image/png"], b"\n\r\n--"),
        forms.Part([forms.disposition(b"metadata"), b"Content-Type: application/json"], b'{"model":"beta"}'),
        forms.Part([forms.disposition(b"file", b"; filename*=utf-8''a.wav"), b"Content-Type: audio/wav"], b"RIFF"),
        forms.Part([forms.disposition("gr\u00fc\u00dfe".encode())], b"1"),
        forms.Part([forms.disposition(b"file", '; filename="\u00e9t\u00e9.wav"'.encode())], b"RIFF"),
    ]
    number = rng.randrange(len(parts))
    case.form.parts.insert(rng.randint(0, len(case.form.parts)), parts[number])
    return str(number)


def form_quotes(_rng, case):
    """Adds a file name with quotation marks, escaped as by Go's writer and by curl before 7.82."""
    header = forms.disposition(b"file", b'; filename="a\\"b.wav"')
    case.form.parts.append(forms.Part([header, b"Content-Type: audio/wav"], b"RIFF"))


def form_header(rng, case):
    """Adds a header line to the part with the model, or changes the case of header names."""
    part = case.form.model_part()
    more = [
        b"Content-Type: text/plain",
        b"Content-Type: text/plain; charset=utf-8",
        b"Content-Transfer-Encoding: binary",
    ]
    more += [b"Content-Transfer-Encoding: 8bit", b"X-Custom: 1", b'content-type: text/plain;charset="utf-8"']
    line = rng.choice(more)
    if not any(header[:12].lower() == line[:12].lower() for header in part.headers):
        part.headers = [line, *part.headers] if rng.random() < 0.5 else [*part.headers, line]
    if rng.random() < 0.3:
        part.headers = [header.replace(b"Content-Disposition", b"content-disposition") for header in part.headers]


def form_end(rng, case):
    case.form.epilogue = rng.choice([b"", b"\r\n"])


def form_as_json(rng, case):
    """Sends JSON to an endpoint whose body may be a form."""
    case.members = json_bodies.plain(rng, case.endpoint, rng.choice(names.PLAIN))
    kinds = [kind for kind in JSON_TYPES if kind != b"application/x-www-form-urlencoded"]
    case.content_type, case.form = rng.choice(kinds), None


def vary(rng, case):
    """Applies one variation."""
    choices = [slashes, query, header]
    if case.members is not None:
        choices += [json_type, json_name, json_model, json_value, json_layout, json_without_a_model]
    if case.form is not None:
        choices += [form_type, form_boundary, form_part, form_part, form_header, form_end, form_as_json]
        choices += [form_quotes] if rng.random() < 0.2 else []
    variation = rng.choice(choices)
    detail = variation(rng, case)
    case.mutations.append(variation.__name__ + (":" + detail if detail else ""))
