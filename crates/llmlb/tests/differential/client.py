"""Sends bytes to a server and reads one response."""

import asyncio
import socket
import struct

# Seconds after which a missing response counts as a rejection.
TIMEOUT = 20


class Response:
    def __init__(self, status, body):
        self.status = status
        self.body = body


async def exchange(port, raw):
    """Returns the response, or None if the server closed the connection without one."""
    try:
        return await asyncio.wait_for(attempt(port, raw), TIMEOUT)
    except (OSError, asyncio.IncompleteReadError, ValueError, TimeoutError, asyncio.TimeoutError):
        return None


async def attempt(port, raw):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(raw)
        # A server may respond before it has read the whole body.
        sending = asyncio.ensure_future(writer.drain())
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await response(reader, raw.startswith(b"HEAD "))
    finally:
        # A reset leaves no local port in TIME_WAIT.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


async def response(reader, is_head):
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if 100 <= status < 200:
        return await response(reader, is_head)
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    if is_head or status in (204, 304):
        return Response(status, b"")
    if b"content-length" in fields:
        return Response(status, await reader.readexactly(int(fields[b"content-length"])))
    if b"transfer-encoding" not in fields:
        return Response(status, await reader.read())
    body = b""
    while True:
        size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
        body += (await reader.readexactly(size + 2))[:size]
        if size == 0:
            return Response(status, body)
