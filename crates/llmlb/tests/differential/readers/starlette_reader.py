"""Reader with Starlette on uvicorn, as in vLLM and FastAPI."""

import os
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

import common


async def model(endpoint, request):
    if endpoint["reads"] == "query":
        return request.query_params.get("model")
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    is_form = kind in ("multipart/form-data", "application/x-www-form-urlencoded")
    if endpoint["reads"] == "form" and is_form:
        async with request.form() as form:
            return common.text_or_nothing(form.get("model"))
    return common.model_of(await request.json())


def route(endpoint):
    async def serve(request):
        try:
            read = None if endpoint["reads"] == "nothing" else await model(endpoint, request)
        except (ValueError, RecursionError) as error:
            return Response(str(error), status_code=400)
        return Response(common.reading(endpoint, read))

    return Route(endpoint["path"], serve, methods=[endpoint["method"]])


threading.Thread(target=lambda: (common.exit_with_parent(), os._exit(0)), daemon=True).start()
application = Starlette(routes=[route(endpoint) for endpoint in common.ENDPOINTS])
config = uvicorn.Config(application, http="h11", ws="none", lifespan="off", log_level="critical")
uvicorn.Server(config).run(sockets=[common.listener()])
