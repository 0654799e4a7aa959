"""The web application: the routes of all protocols, of the page and of the probes."""

import inspect
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount, Route, Router

from tfexport import __version__
from tfexport.serve import openapi
from tfexport.serve.middleware import App, RequestMiddleware
from tfexport.serve.protocols import (
    deepl,
    deepl_glossaries,
    kserve,
    libretranslate,
    openai,
    own,
    token_offsets,
)
from tfexport.serve.protocols.response_models import ANSWERS
from tfexport.serve.service import Service
from tfexport.serve.texts import KEPT, UNFINISHED, UNMET

PAGE = Path(__file__).with_name("page")
# Browsers ask again at every visit, and get 304 while the files are unchanged.
_PAGE_HEADERS = {"Cache-Control": "no-cache"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def make_app(service: Service, *, local: bool = False) -> App:
    """The application of a service, for an ASGI server.

    Args:
        service: the service to serve.
        local: whether it listens only to this machine, and accepts only this machine's names.
    """
    app = FastAPI(
        title="tfexport", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    protocols = (own, token_offsets, openai, libretranslate, deepl, deepl_glossaries, kserve)
    # Only what FastAPI's routes need, without its own answers to what is raised, which
    # ``RequestMiddleware`` answers.
    app.middleware_stack = AsyncExitStackMiddleware(app.router)
    routers = [protocol.routes(service) for protocol in protocols]
    for router in routers:
        app.include_router(router)
    _add_pages(app)
    _add_probes(app, service)
    work = [route for router in routers for route in _work_routes(router)]
    front = Router([*work, Mount("/", app)])
    hosts = service.settings.allowed_hosts if local else None
    document = app.openapi()
    openapi.complete(document, ANSWERS, keys=service.keys.needed)
    middleware: App = RequestMiddleware(front, service, document["paths"], hosts)
    if service.settings.cors_origins:
        middleware = CORSMiddleware(
            middleware, service.settings.cors_origins, allow_methods=["*"], allow_headers=["*"],
            expose_headers=["X-Request-Id", "Retry-After", UNFINISHED, UNMET, KEPT],
        )  # fmt: skip
    return middleware


def _work_routes(router: APIRouter) -> list[Route]:
    """The POST routes of a protocol whose functions read their bodies themselves, for Starlette.

    FastAPI tries the routes of all routers one after the other, and prepares parameters that these
    functions do not have: a quarter of the event loop's time for a request. It still describes
    them, and answers other methods of their paths.
    """
    return [
        Route(route.path, route.endpoint, methods=["POST"])
        for route in router.routes
        if isinstance(route, APIRoute)
        and route.methods == {"POST"}
        and list(inspect.signature(route.endpoint).parameters) == ["request"]
    ]


class _PageFiles(StaticFiles):
    """The page's files."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """A file, or status 304 if it is unchanged."""
        response = super().file_response(*args, **kwargs)
        response.headers.update(_PAGE_HEADERS)
        return response


def _add_pages(app: FastAPI) -> None:
    app.mount("/page", _PageFiles(directory=PAGE), name="page")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(PAGE / "index.html", headers=_PAGE_HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(openapi.page(app.openapi()))


def _add_probes(app: FastAPI, service: Service) -> None:
    async def live() -> Response:
        return JSONResponse({"status": "ok"})

    async def ready() -> Response:
        if service.stopping:
            return JSONResponse({"status": "stopping"}, 503)
        return JSONResponse({"status": "ok"})

    openapi.add_probe(app.router, "/health/live", live, "Whether the server runs.")
    openapi.add_probe(app.router, "/health/ready", ready, "Whether it takes work.")

    @app.get("/metrics", summary="Figures, as Prometheus reads them.")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=METRICS_TYPE)
