"""Reader with aiohttp and its server."""

import asyncio
import os
import threading

from aiohttp import web

import common


async def model(endpoint, request):
    if endpoint["reads"] == "query":
        return request.query.get("model")
    is_form = request.content_type in ("multipart/form-data", "application/x-www-form-urlencoded")
    if endpoint["reads"] == "form" and is_form:
        return common.text_or_nothing((await request.post()).get("model"))
    return common.model_of(await request.json())


def handler(endpoint):
    async def serve(request):
        try:
            read = None if endpoint["reads"] == "nothing" else await model(endpoint, request)
        except (ValueError, LookupError, RecursionError) as error:
            return web.Response(text=repr(error), status=400)
        return web.Response(body=common.reading(endpoint, read))

    return serve


async def main():
    application = web.Application(client_max_size=64 << 20)
    for endpoint in common.ENDPOINTS:
        application.router.add_route(endpoint["method"], endpoint["path"], handler(endpoint))
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.SockSite(runner, common.listener()).start()
    await asyncio.Event().wait()


threading.Thread(target=lambda: (common.exit_with_parent(), os._exit(0)), daemon=True).start()
asyncio.run(main())
