"""Liveness, readiness and metrics (R-070, R-071, OP-48).

Live means that the event loop turns; it touches no dependency. Ready means that work taken now can
be kept: it is false within 5 s when Postgres is away, and while this node drains (INV-40).
"""

from collections.abc import Callable

import msgspec
from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.answers import Answer, ApiError
from orbit_sdk.protocol.errors import ErrorCode
from runtime.metrics import METRICS_CONTENT_TYPE, metrics_text


class Readiness(msgspec.Struct, frozen=True):
    """Whether this node may be given work. `reason` is empty when it may."""

    ready: bool
    reason: str
    degraded: bool
    """Redis is away: work goes on through the slow twins."""


class HealthResource:
    """The handlers under `/health`, and the metrics page."""

    def __init__(self, readiness: Callable[[], Readiness], registry: CollectorRegistry) -> None:
        self._readiness = readiness
        self._registry = registry

    async def live(self, _request: Request) -> Answer:
        """The process serves requests."""
        return Answer({"live": True})

    async def ready(self, _request: Request) -> Answer:
        """The process can safely take work; else 503 with the reason."""
        state = self._readiness()
        if not state.ready:
            raise ApiError(ErrorCode.UNAVAILABLE, details={"reason": state.reason})
        return Answer({"ready": True, "degraded": state.degraded})

    async def metrics(self, _request: Request) -> Response:
        """The process's metrics in the Prometheus text form."""
        return Response(metrics_text(self._registry), media_type=METRICS_CONTENT_TYPE)
