"""Backend that stores the bytes of every request and responds with a usage report."""

import asyncio
import json

RESPONSE = json.dumps(
    {
        "id": "response-1",
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2, "input_tokens": 1, "output_tokens": 1},
    }
).encode()


class Backend:
    def __init__(self):
        # Requests by id.
        self.received = {}
        self.repeated = []

    async def start(self):
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0, limit=64 << 20, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = head_fields(head)
                raw = head + await framed_body(reader, fields)
                self.store(fields.get(b"x-request-id"), raw)
                await self.respond(writer, head)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def store(self, request_id, raw):
        if request_id is None:
            return
        name = request_id.decode("latin-1")
        if name in self.received:
            self.repeated.append(name)
        self.received[name] = raw

    async def respond(self, writer, head):
        body = b"" if head.startswith(b"HEAD ") else RESPONSE
        fields = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(RESPONSE)
        writer.write(b"HTTP/1.1 200 OK\r\n" + fields + b"\r\n" + body)
        await writer.drain()


def head_fields(head):
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
    return {name.strip().lower(): value.strip() for name, _, value in lines if name}


async def framed_body(reader, fields):
    """Returns the body as it is on the wire."""
    if b"transfer-encoding" not in fields:
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    raw = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        raw += line
        if size > 0:
            raw += await reader.readexactly(size + 2)
            continue
        while raw[-4:] != b"\r\n\r\n":
            raw += await reader.readuntil(b"\r\n")
        return raw
