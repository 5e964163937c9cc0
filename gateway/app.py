"""The ASGI application of a gateway: HTTP resources, and worker sockets past the web framework.

Frames go straight between the server and the socket shell: no framework code runs for each of them.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http import openapi
from gateway.http.answers import Answer, Answers, ApiError, Handler
from gateway.http.auth import Gate
from gateway.http.body_room import BodyRoom
from gateway.http.health import HealthResource
from gateway.http.held import HeldResource
from gateway.http.operations import OperationResource
from gateway.http.queues import QueueResource
from gateway.http.submission import Submissions
from gateway.http.tasks import TaskResource
from gateway.node import Node
from gateway.worker.connect import PATH, WorkerEndpoint, deny
from orbit_sdk.protocol.errors import ErrorCode

_VERSION: Final = "v1"


class GatewayApp:
    """Sends each connection to the part that serves it."""

    def __init__(self, http: ASGIApp, worker: WorkerEndpoint, answers: Answers) -> None:
        self.bodies: Final = BodyRoom(http)
        self._worker = worker
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.bodies(scope, receive, send)
        elif scope["path"] == PATH:
            await self._worker(scope, receive, send)
        else:
            await receive()
            await deny(send, self._answers.failure(ApiError(ErrorCode.NOT_FOUND)))


def create_app(node: Node, *, hello_timeout_s: float) -> GatewayApp:
    """The application of a node that the caller runs."""
    answers = Answers(node.ids.next)
    gate = Gate(node.credentials)
    http = FastAPI(
        title="Orbit", version=_VERSION, docs_url=None, redoc_url=None, openapi_url="/openapi.json"
    )
    http.router.redirect_slashes = False
    http.add_exception_handler(HTTPException, answers.on_http_exception)
    http.add_exception_handler(Exception, answers.on_exception)
    _add_routes(http, node, gate, answers)
    page = http.openapi()
    page.setdefault("components", {})["schemas"] = openapi.components()
    return GatewayApp(http, WorkerEndpoint(node, gate, answers, hello_timeout_s), answers)


def _add_routes(http: FastAPI, node: Node, gate: Gate, answers: Answers) -> None:
    submissions = Submissions(node.commands, node.catalog, node.hints, node.ids)
    tasks = TaskResource(gate, submissions, node.calls)
    queues = QueueResource(gate, node.calls, node.ids)
    operations = OperationResource(gate, node.commands, node.calls, node.hints)
    held = HeldResource(gate, node.commands, node.calls, node.ring)
    health = HealthResource(node.readiness, node.registry)

    def add(method: str, path: str, name: str, handler: Handler, status_code: int = 200) -> None:
        _add(http, method, path, name, answers.endpoint(handler), handler.__doc__, status_code)

    add("POST", "/v1/tasks", "submit_task", tasks.submit, 201)
    add("POST", "/v1/tasks:batchSubmit", "submit_tasks", tasks.batch_submit)
    add("POST", "/v1/tasks/{task_id}:cancel", "cancel_task", operations.cancel)
    add("POST", "/v1/tasks/{task_id}:retry", "retry_task", operations.retry)
    add("POST", "/v1/tasks/{task_id}:resolve", "resolve_task", operations.resolve)
    add("GET", "/v1/tasks/{task_id}", "get_task", tasks.read)
    add("GET", "/v1/tasks/{task_id}/attempts", "list_attempts", tasks.attempts)
    add("GET", "/v1/queues", "list_queues", queues.list_all)
    add("POST", "/v1/queues", "create_queue", queues.create, 201)
    add("GET", "/v1/queues/{queue}", "get_queue", queues.read)
    add("POST", "/v1/queues/{queue}:pause", "pause_queue", operations.pause)
    add("POST", "/v1/queues/{queue}:resume", "resume_queue", operations.resume)
    add("POST", "/v1/worker/attempts:renew", "renew_held", held.renew)
    add("POST", "/v1/worker/attempts:finish", "finish_held", held.finish)
    add("GET", "/health/live", "live", health.live)
    add("GET", "/health/ready", "ready", health.ready)
    add("GET", PATH, "connect_worker", _upgrade_only)
    _add(http, "GET", "/metrics", "metrics", health.metrics, health.metrics.__doc__, 200)


def _add(
    http: FastAPI,
    method: str,
    path: str,
    name: str,
    endpoint: Callable[[Request], Awaitable[Response]],
    text: str | None,
    status_code: int,
) -> None:
    http.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=name,
        operation_id=name,
        summary=(text or "").strip(),
        status_code=status_code,
        response_class=Response,
        response_model=None,
        openapi_extra=openapi.operation(name),
    )


async def _upgrade_only(_request: Request) -> Answer:
    """Connect a worker: a WebSocket upgrade with subprotocol pulse.worker.v2 or pulse.worker.v1."""
    raise ApiError(ErrorCode.BAD_REQUEST, "This path takes WebSocket upgrades only.")
