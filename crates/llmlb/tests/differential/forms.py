"""Multipart forms as known clients send them."""


class Part:
    """Part with its header lines as bytes, so that a mutation can write them in any form."""

    def __init__(self, headers, content):
        self.headers = headers
        self.content = content


class Form:
    def __init__(self, boundary, parts):
        self.boundary = boundary
        self.parts = parts
        # Value of Content-Type.
        self.kind = b"multipart/form-data; boundary=" + boundary
        self.line = b"\r\n"
        self.preamble = b""
        self.epilogue = b"\r\n"
        # Bytes after the boundary in its line, and after the last boundary.
        self.padding = b""
        self.last = b"--"

    def encoded(self):
        line, out = self.line, self.preamble
        for part in self.parts:
            out += b"--" + self.boundary + self.padding + line
            out += b"".join(header + line for header in part.headers) + line + part.content + line
        if self.last is None:
            return out
        return out + b"--" + self.boundary + self.last + self.epilogue

    def model_part(self):
        for part in self.parts:
            if any(b"model" in header for header in part.headers):
                return part
        return self.parts[0]


def disposition(name, more=b""):
    return b'Content-Disposition: form-data; name="' + name + b'"' + more


def audio(rng):
    return bytes(rng.randrange(256) for _ in range(rng.choice([4, 20, 20, 3000])))


def curl(rng, model):
    boundary = b"------------------------" + b"%016x" % rng.getrandbits(64)
    return Form(
        boundary,
        [
            Part([disposition(b"file", b'; filename="a.wav"'), b"Content-Type: audio/wav"], audio(rng)),
            Part([disposition(b"model")], model),
            Part([disposition(b"language")], b"en"),
        ],
    )


def python_httpx(rng, model):
    return Form(
        b"%032x" % rng.getrandbits(128),
        [
            Part([disposition(b"model")], model),
            Part([disposition(b"timestamp_granularities[]")], b"word"),
            Part([disposition(b"file", b'; filename="a; b.wav"'), b"Content-Type: audio/x-wav"], audio(rng)),
        ],
    )


def node_fetch(rng, model):
    boundary = b"----formdata-undici-0%011d" % rng.randrange(10**11)
    return Form(
        boundary,
        [
            Part(
                [disposition(b"file", b'; filename="model.mp3"'), b"Content-Type: application/octet-stream"], audio(rng)
            ),
            Part([disposition(b"model")], model),
        ],
    )


def dot_net(rng, model):
    boundary = b"%08x-1234-4abc-8def-%012x" % (rng.getrandbits(32), rng.getrandbits(48))
    form = Form(
        boundary,
        [
            Part([b"Content-Type: text/plain; charset=utf-8", b"Content-Disposition: form-data; name=model"], model),
            Part(
                [
                    b"Content-Type: audio/wav",
                    b"Content-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav",
                ],
                audio(rng),
            ),
        ],
    )
    form.kind = b'multipart/form-data; boundary="' + boundary + b'"'
    return form


def go_writer(rng, model):
    return Form(
        b"%060x" % rng.getrandbits(240),
        [
            Part([disposition(b"model")], model),
            Part([disposition(b"file", b'; filename="a.wav"'), b"Content-Type: application/octet-stream"], audio(rng)),
        ],
    )


def java_okhttp(rng, model):
    boundary = b"%08x-0000-4000-8000-%012x" % (rng.getrandbits(32), rng.getrandbits(48))
    return Form(
        boundary,
        [
            Part([disposition(b"model"), b"Content-Length: %d" % len(model)], model),
            Part([disposition(b"file", b'; filename="a.wav"'), b"Content-Type: audio/wav"], audio(rng)),
        ],
    )


CLIENTS = [curl, python_httpx, node_fetch, dot_net, go_writer, java_okhttp]
