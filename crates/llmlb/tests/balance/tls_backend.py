"""Backend with TLS. The arguments are its certificate and its key."""

import http.server
import json
import os
import socket
import ssl
import sys
import threading

next_event = threading.Semaphore(0)


class Backend(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/v1/models":
            self.respond(json.dumps({"object": "list", "data": [{"id": "m"}]}).encode())
        else:
            self.send_error(404)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        print("received", flush=True)
        request = json.loads(body)
        command = request.get("x", "")
        if request.get("stream"):
            self.begin(("transfer-encoding", "chunked"))
            for number in range(3):
                self.chunk(f"data: {number}\n\n")
                next_event.acquire()
            self.wfile.write(b"0\r\n\r\n")
        elif command == "next event":
            next_event.release()
            self.respond(body)
        elif command == "silent":
            print("silent", flush=True)
            self.rfile.read(1)
            print("disconnected", flush=True)
        elif command == "cut chunks":
            self.begin(("transfer-encoding", "chunked"))
            self.chunk("first")
            self.cut()
        elif command == "cut length":
            self.begin(("content-length", "100"))
            self.wfile.write(b"first")
            self.cut()
        elif command == "cut end":
            self.begin(("connection", "close"))
            self.wfile.write(b"first")
            self.cut()
        else:
            self.respond(body)

    def begin(self, header):
        self.send_response(200)
        self.send_header(*header)
        self.end_headers()

    def chunk(self, text):
        self.wfile.write(f"{len(text):x}\r\n{text}\r\n".encode())

    def respond(self, body):
        self.begin(("content-length", str(len(body))))
        self.wfile.write(body)

    def cut(self):
        """Closes the connection without a TLS close."""
        self.wfile.flush()
        plain = socket.socket(fileno=os.dup(self.connection.fileno()))
        plain.shutdown(socket.SHUT_RDWR)
        plain.close()
        self.close_connection = True


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
server.daemon_threads = True
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(
    server.socket, server_side=True, do_handshake_on_connect=False
)
print("port", server.server_port, flush=True)
server.serve_forever()
