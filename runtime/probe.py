"""The small HTTP side of a process that serves no API: /health/live, /health/ready, /metrics.

Where: run beside the loops of such a process, on a port of its own.
Promise: live touches nothing (INV-40); ready is 503 with the reason while `readiness` gives one.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from runtime.metrics import METRICS_CONTENT_TYPE, metrics_text

CLOSE_S = 1  # a scrape in hand may end


class NotReady(Exception):
    """Why the process cannot do its work now, in one line without secrets."""


def probe_app(registry: CollectorRegistry, readiness: Callable[[], dict[str, Any]]) -> Starlette:
    """The application. readiness: facts to show while ready; raises NotReady otherwise."""

    async def live(_: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(_: Request) -> Response:
        try:
            return JSONResponse({"status": "ready", **readiness()})
        except NotReady as reason:
            return JSONResponse({"status": "not_ready", "reason": str(reason)}, status_code=503)

    async def metrics(_: Request) -> Response:
        return Response(metrics_text(registry), media_type=METRICS_CONTENT_TYPE)

    return Starlette(
        routes=[
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/metrics", metrics),
        ]
    )


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process owns its signals."""
        yield


async def serve_probe(app: Starlette, host: str, port: int, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises OSError if the address cannot be had."""
    listener = socket.create_server((host, port), family=_family(host))
    server = _Server(
        uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_S,
        )
    )
    with listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await stop.wait()
        finally:
            server.should_exit = True
            await serving


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
