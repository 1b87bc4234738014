"""Serves moto's DynamoDB on 127.0.0.1, on the port of the first argument.

moto checks the condition of a write and applies the write in two steps, so a lock lets it process
one request at a time. Requests are read outside of the lock, by a thread for each connection: a
client that is suspended in the middle of a request does not block the others. Each response closes
its connection.
"""

import io
import socketserver
import sys
import threading
import wsgiref.simple_server

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

moto = DomainDispatcherApplication(create_backend_app)
one_at_a_time = threading.Lock()


def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    with one_at_a_time:
        return list(moto(environ, start_response))


class Handler(wsgiref.simple_server.WSGIRequestHandler):
    timeout = 60

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):
        # The base class resolves the host name, which can take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def handle_error(self, *_):
        # A client that disconnects early is no error of a test.
        pass


with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
    server.set_app(application)
    server.serve_forever()
