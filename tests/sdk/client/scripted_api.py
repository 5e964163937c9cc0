"""A real HTTP server on the loopback that answers as a test's script says, and remembers.

A script entry is an answer, or a fault: the connection is cut before or after the request was
taken, or no answer comes while `silence` is not released.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

CREDENTIAL = f"orbit_{'0' * 16}_{'s' * 43}"
TASK_ID = "a" * 32


@dataclass(frozen=True)
class Reply:
    """One answer; `cut` closes the connection instead, `silent` says nothing until released."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    silent: bool = False


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


def success(data: object, status: int = 200) -> Reply:
    return Reply(status, orjson.dumps({"request_id": "r" * 32, "data": data}))


def failure(status: int, code: str, headers: dict[str, str] | None = None) -> Reply:
    error = {"code": code, "message": f"told so: {code}", "details": {"field": "x"}}
    return Reply(status, orjson.dumps({"request_id": "r" * 32, "error": error}), headers or {})


def submitted(task_id: str = TASK_ID, *, deduplicated: bool = False) -> dict[str, object]:
    return {"id": task_id, "state": "WAITING", "revision": "1", "deduplicated": deduplicated}


def task(state: str = "WAITING", **more: object) -> dict[str, object]:
    return {
        "id": TASK_ID,
        "namespace_id": "b" * 32,
        "queue_id": "c" * 32,
        "state": state,
        "revision": "18446744073709551615",
        "handler": "work",
        "handler_version": "1",
        "payload_version": "1",
        "payload": {"n": 1},
        "priority": 0,
        "available_at": "2030-01-01T00:00:00Z",
        "deadline_at": "2030-01-02T00:00:00.5Z",
        "recovery_safety": "IDEMPOTENT",
        "retry": {
            "max_attempts": 3,
            "initial_delay_ms": 1,
            "max_delay_ms": 2,
            "attempt_timeout_ms": 3,
        },
        "attempt_count": 1,
        "created_at": "2030-01-01T00:00:00Z",
        "updated_at": "2030-01-01T00:00:00Z",
        "a_field_of_tomorrow": True,
        **more,
    }


class ScriptedApi:
    """Answers requests from `script`, one entry a request; the last entry answers for ever."""

    def __init__(self) -> None:
        self.script: deque[Reply] = deque()
        self.seen: list[Seen] = []
        self.silence = threading.Event()
        self.url = ""
        self._lock = threading.Lock()

    def take(self, request: Seen) -> Reply:
        with self._lock:
            self.seen.append(request)
            return self.script.popleft() if len(self.script) > 1 else self.script[0]


@contextmanager
def scripted_api(*script: Reply) -> Iterator[ScriptedApi]:
    """A server for one test."""
    api = ScriptedApi()
    api.script.extend(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = api.take(Seen(self.command, self.path, headers, body))
            if reply.silent:
                api.silence.wait(30)
            if reply.cut or reply.silent:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_POST = do_GET  # noqa: N815 - the name that http.server calls

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield api
    finally:
        api.silence.set()
        server.shutdown()
        thread.join()
        server.server_close()
