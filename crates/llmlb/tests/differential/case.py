"""Generated requests and their bytes."""

import base64
import json
import zlib


class Case:
    """Request in parts, so that mutations can change each part."""

    def __init__(self, number, endpoint):
        self.number = number
        self.endpoint = endpoint
        self.method = endpoint["method"]
        self.path = endpoint["path"].replace("{id}", "file-abc123").encode()
        self.query = None
        # Header lines, without Host, framing and request id.
        self.headers = []
        self.content_type = None
        self.body = None
        self.chunks = None
        # Trailer field after the last chunk.
        self.trailers = None
        # Parts of a body that is not encoded yet.
        self.members = None
        self.form = None
        # Class of the request (plain, varied or hostile), and the names of its mutations.
        self.label = "plain"
        self.mutations = []

    @property
    def request_id(self):
        return f"case-{self.number:06}"

    def encode_body(self):
        """Encodes the body from its parts, unless a mutation has written it."""
        if self.body is None and self.members is not None:
            self.body = self.members.text().encode("utf-8", "surrogatepass")
        if self.body is None and self.form is not None:
            self.body = self.form.encoded()
        if self.form is not None and self.content_type is None:
            self.content_type = self.form.kind
        if self.chunks is not None and self.body is not None and len(self.body) // self.chunks > 20000:
            self.chunks = 4096

    def raw(self):
        """Returns the request as it is sent."""
        target = self.path if self.query is None else self.path + b"?" + self.query
        lines = [self.method.encode() + b" " + target + b" HTTP/1.1", b"Host: localhost"]
        lines.append(b"x-request-id: " + self.request_id.encode())
        if self.content_type is not None:
            lines.append(b"Content-Type: " + self.content_type)
        lines += self.headers
        body = b""
        if self.body is not None and self.chunks is None:
            lines.append(b"Content-Length: %d" % len(self.body))
            body = self.body
        elif self.body is not None:
            lines.append(b"Transfer-Encoding: chunked")
            body = chunked(self.body, self.chunks, self.trailers)
        return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body, size, trailers):
    """Returns the body in chunks of this size."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    framed = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return b"".join(framed) + b"0\r\n" + (trailers + b"\r\n" if trailers else b"") + b"\r\n"


class Message:
    """Bytes of a request, with the fields that a replay file stores."""

    def __init__(self, number, raw, label, mutations):
        self.number = number
        self.raw = raw
        self.label = label
        self.mutations = mutations
        self.request_id = f"case-{number:06}"

    @classmethod
    def from_case(cls, case):
        return cls(case.number, case.raw(), case.label, case.mutations)

    def body(self):
        return body_of(self.raw)

    def to_line(self, seed):
        packed = base64.b64encode(zlib.compress(self.raw, 9)).decode()
        kind = {"label": self.label, "mutations": self.mutations}
        return json.dumps({"number": self.number, "seed": seed, **kind, "raw": packed})

    @classmethod
    def from_line(cls, line):
        fields = json.loads(line)
        raw = zlib.decompress(base64.b64decode(fields["raw"]))
        return cls(fields["number"], raw, fields["label"], fields["mutations"])


def header_of(raw, name):
    """Returns the first value of a header; `name` is in lower case."""
    head = raw.partition(b"\r\n\r\n")[0]
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip()
    return None


def body_of(raw):
    """Returns the body of a request without its framing."""
    rest = raw.partition(b"\r\n\r\n")[2]
    if header_of(raw, b"transfer-encoding") is None:
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        size = int(size, 16)
        if size == 0:
            break
        body += rest[:size]
        rest = rest[size + 2 :]
    return body
