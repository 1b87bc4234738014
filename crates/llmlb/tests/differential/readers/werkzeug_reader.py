"""Reader with Werkzeug and its server, as in Flask."""

import os
import threading

from werkzeug.exceptions import HTTPException
from werkzeug.routing import Map, Rule
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

import common


class Handler(WSGIRequestHandler):
    timeout = 30

    def log(self, *_):
        pass


def rule(number, endpoint):
    path = endpoint["path"].replace("{", "<").replace("}", ">")
    return Rule(path, endpoint=number, methods=[endpoint["method"]])


ROUTES = Map([rule(number, endpoint) for number, endpoint in enumerate(common.ENDPOINTS)])


def model(endpoint, request):
    if endpoint["reads"] == "query":
        return request.args.get("model")
    is_form = request.mimetype in ("multipart/form-data", "application/x-www-form-urlencoded")
    if endpoint["reads"] == "form" and is_form:
        return request.form.get("model")
    return common.model_of(request.get_json(force=True))


@Request.application
def application(request):
    try:
        number, _ = ROUTES.bind_to_environ(request.environ).match()
        endpoint = common.ENDPOINTS[number]
        read = None if endpoint["reads"] == "nothing" else model(endpoint, request)
        return Response(common.reading(endpoint, read))
    except HTTPException as error:
        return error
    except (ValueError, RecursionError) as error:
        return Response(str(error), status=400)


listening = common.listener()
server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Handler, fd=listening.fileno())
threading.Thread(target=server.serve_forever, daemon=True).start()
common.exit_with_parent()
os._exit(0)
