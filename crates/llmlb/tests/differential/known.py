"""Requests that have been recorded with another endpoint or model than a reader would serve.

Every run includes them, whatever its seed.
"""

from case import Message

CHAT = b"/v1/chat/completions"
AUDIO = b"/v1/audio/transcriptions"
JSON = b"Content-Type: application/json"
FORM = b"Content-Type: multipart/form-data; boundary=x"
ALPHA = b'{"model":"alpha"}'
NAME = b'Content-Disposition: form-data; name="model"'


def form(*parts, boundary=b"x"):
    """Returns a form of these parts. A part is its header lines and its content."""
    return b"".join(b"--%b\r\n%b\r\n\r\n%b\r\n" % (boundary, *part) for part in parts) + b"--%b--\r\n" % boundary


def part(name, content):
    return b"Content-Disposition: form-data; " + name, content


MODEL = part(b'name="model"', b"alpha")

# Name, path, header lines, body.
REQUESTS = [
    ("escaped slash", b"/v1/chat%2Fcompletions", [JSON], ALPHA),
    ("escaped slash at the end", CHAT + b"%2F", [JSON], ALPHA),
    ("escaped letter", b"/v1/ch%61t/completions", [JSON], ALPHA),
    ("upper case", b"/v1/Chat/Completions", [JSON], ALPHA),
    ("path parameters", CHAT + b";x=1", [JSON], ALPHA),
    ("dot segments with parameters", b"/v1/x/..;/chat/completions", [JSON], ALPHA),
    ("dot segments in the id of a file", b"/v1/files/..%2Fchat%2Fcompletions", [JSON], ALPHA),
    ("repeated slash", b"/v1//chat/completions", [JSON], ALPHA),
    ("endpoint of llama.cpp", b"/v1/reranking", [JSON], ALPHA),
    ("JSON labelled as multipart", CHAT, [FORM], ALPHA),
    ("JSON labelled as a form", AUDIO, [b"Content-Type: application/x-www-form-urlencoded"], ALPHA),
    (
        "JSON that is also a form",
        AUDIO,
        [b"Content-Type: application/x-www-form-urlencoded"],
        b'{"model":"alpha","x":"&model=beta&"}',
    ),
    (
        "JSON in UTF-7",
        CHAT,
        [b"Content-Type: application/json; charset=utf-7"],
        b'{"model":"alpha","user":"x+ACI-,+ACI-model+ACI-:+ACI-beta"}',
    ),
    (
        "JSON in a codec of Python",
        CHAT,
        [b"Content-Type: application/json; charset=raw_unicode_escape"],
        b'{"model":"alpha","user":"x\\u0022,\\u0022model\\u0022:\\u0022beta"}',
    ),
    ("name in another case", CHAT, [JSON], b'{"model":"alpha","Model":"beta"}'),
    ("two documents", CHAT, [JSON], ALPHA + b'{"model":"beta"}'),
    ("model in the query of a form", AUDIO + b"?model=beta", [FORM], form(MODEL)),
    ("empty model in the query of a form", AUDIO + b"?model=", [FORM], form(MODEL)),
    ("model without a value in the query of a form", AUDIO + b"?model", [FORM], form(MODEL)),
    (
        "two boundaries",
        AUDIO,
        [b"Content-Type: multipart/form-data; boundary=x; boundary=y"],
        form(MODEL) + form(part(b"name=model", b"beta"), boundary=b"y"),
    ),
    (
        "two Content-Types",
        AUDIO,
        [FORM, b"Content-Type: multipart/form-data; boundary=y"],
        form(MODEL) + form(part(b"name=model", b"beta"), boundary=b"y"),
    ),
    (
        "extended boundary",
        AUDIO,
        [b"Content-Type: multipart/form-data; boundary*=utf-8''y; boundary=x"],
        form(MODEL) + form(part(b"name=model", b"beta"), boundary=b"y"),
    ),
    (
        "semicolon in a quoted boundary",
        AUDIO,
        [b'Content-Type: multipart/form-data; boundary="x;y"'],
        form(MODEL, boundary=b"x;y") + form(part(b"name=model", b"beta")),
    ),
    ("line feeds", AUDIO, [FORM], form(MODEL).replace(b"\r\n", b"\n")),
    ("extended name", AUDIO, [FORM], form(part(b"name*=utf-8''model", b"beta"), MODEL)),
    ("continued name", AUDIO, [FORM], form(part(b"name*0=mo; name*1=del", b"beta"), MODEL)),
    ("name that begins with a slash", AUDIO, [FORM], form(part(b'name="/model"', b"beta"), MODEL)),
    ("escape in a name", AUDIO, [FORM], form(part(b'name="mo\\del"', b"beta"), MODEL)),
    ("folded header", AUDIO, [FORM], form((b'Content-Disposition: form-data;\r\n name="model"', b"beta"), MODEL)),
    ("preamble", AUDIO, [FORM], b"\r\n" + form(part(b'name="model"', b"beta"))),
    ("two models", AUDIO, [FORM], form(part(b'name="model"', b"beta"), MODEL)),
    ("second form after the first", AUDIO, [FORM], form(MODEL) + form(part(b'name="model"', b"beta"))),
    ("charset field", AUDIO, [FORM], form(part(b'name="_charset_"', b"utf-7"), part(b'name="model"', b"+AGI-eta"))),
    (
        "charset field with a slash",
        AUDIO,
        [FORM],
        form(part(b'name="/_charset_"', b"utf-7"), part(b'name="model"', b"+AGI-eta")),
    ),
    (
        "part in another charset",
        AUDIO,
        [FORM],
        form((b"Content-Type: text/plain; charset=us-ascii\r\n" + NAME, "caf\u00e9".encode())),
    ),
    (
        "quoted-printable part",
        AUDIO,
        [FORM],
        form((b"Content-Transfer-Encoding: quoted-printable\r\n" + NAME, b"alph=61")),
    ),
    (
        "binary part type",
        AUDIO,
        [FORM],
        form((b"Content-Type: application/octet-stream\r\n" + NAME, b"alpha")),
    ),
]


def messages(first):
    """Returns the requests, numbered from `first` on."""
    for number, (name, path, headers, body) in enumerate(REQUESTS, first):
        lines = [b"POST " + path + b" HTTP/1.1", b"Host: localhost", b"x-request-id: case-%06d" % number]
        lines += [*headers, b"Content-Length: %d" % len(body)]
        yield Message(number, b"\r\n".join(lines) + b"\r\n\r\n" + body, "known", [name])
