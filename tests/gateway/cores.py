"""Parts for tests of the session core: ids, frames, outcomes, and a session brought to READY."""

import base64
import itertools
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from gateway.lanes import Refused
from gateway.worker.actions import Action, Declare, Send
from gateway.worker.attempts import Ask, Command
from gateway.worker.dialect import Dialect
from gateway.worker.dialect_v1 import DialectV1
from gateway.worker.dialect_v2 import DialectV2
from gateway.worker.lease_secret import KeyRing
from gateway.worker.session import Session
from store.commands import CapacityOutcome, CommandOutcome, SessionOutcome
from store.dispatch import Assignment
from tests.contract.oracle import Version, accepts

LEASE_MS = 30_000
RING = KeyRing({1: bytes(range(32))})
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SECRET = base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")


def an_id(number: int) -> str:
    return f"{number:032x}"


SESSION, NAMESPACE, QUEUE = an_id(1), an_id(2), an_id(3)


DIALECTS: dict[Version, Dialect] = {"1": DialectV1(), "2": DialectV2()}


def new_session(version: Version = "1") -> Session:
    numbers = itertools.count(10_000)
    return Session(
        DIALECTS[version],
        session_id=SESSION,
        namespace_id=NAMESPACE,
        ring=RING,
        lease_ms=LEASE_MS,
        next_id=lambda: an_id(next(numbers)),
    )


def frame(
    kind: str,
    body: object,
    message: int = 500,
    session_id: str = SESSION,
    version: Version = "1",
) -> str:
    fields: dict[str, object] = {
        "protocol_version": version,
        "type": kind,
        "message_id": an_id(message),
    }
    if kind != "worker.hello":
        fields["session_id"] = session_id
    return json.dumps(fields | {"body": body})


def batch(kind: str, bodies: Iterable[dict[str, Any]], message: int = 500) -> str:
    """A v2 frame of these bodies of v1; the operations are numbered from the frame's number on."""
    items = [{"message_id": an_id(message + place), **body} for place, body in enumerate(bodies, 1)]
    return frame(kind, {"items": items}, message, version="2")


def hello(message: int = 500, capacity: int = 4, version: Version = "1") -> str:
    capability = {"handler": "send", "handler_version": "1", "payload_version": "1"}
    body = {
        "instance_id": an_id(77),
        "instance_secret": SECRET,
        "queue_id": QUEUE,
        "capabilities": [capability],
        "capacity": capacity,
    }
    return frame("worker.hello", body, message, version=version)


def ref(attempt: int = 900, epoch: int = 1) -> dict[str, str]:
    attempt_id = an_id(attempt)
    return {
        "task_id": an_id(attempt + 1_000_000),
        "attempt_id": attempt_id,
        "epoch": str(epoch),
        "lease_secret": RING.derive(attempt_id, str(epoch)),
    }


def finish(attempt: int = 900) -> dict[str, object]:
    return {"ref": ref(attempt), "outcome": "SUCCEEDED", "result": 1}


def capacity(sequence: int, slots: int = 4, drain: bool = False) -> dict[str, object]:
    return {"sequence": str(sequence), "capacity": slots, "drain": drain}


def opened(code: str = "ok", draining: bool = False, capacity: int = 4) -> SessionOutcome:
    if code != "ok":
        return SessionOutcome(code, None, None, None, NOW, None, None, None)
    return SessionOutcome("ok", 7, draining, NOW + timedelta(hours=1), NOW, capacity, None, None)


def declares(session: Session, text: str) -> Declare:
    """A capacity update, as the session asks for it."""
    (declare,) = session.on_text(text, 0.0)
    assert isinstance(declare, Declare)
    return declare


def declared(slots: int, draining: bool = False, code: str = "ok") -> CapacityOutcome:
    return CapacityOutcome(code, draining, 7, NOW + timedelta(hours=1), NOW, slots)


def done(
    state: str = "RUNNING", *, active: bool = True, settled: bool = False, code: str = "ok"
) -> CommandOutcome:
    until = NOW + timedelta(seconds=30)
    return CommandOutcome(
        code, "RUNNING", "RUNNING", 3, until, "APPLIED", False, active, state, until, NOW, settled
    )


def assignment(attempt: int = 900, epoch: int = 1) -> Assignment:
    task = {
        "id": an_id(attempt + 1_000_000),
        "namespace_id": NAMESPACE,
        "queue_id": QUEUE,
        "state": "LEASED",
        "revision": "2",
        "handler": "send",
        "handler_version": "1",
        "payload_version": "1",
        "payload": {"n": 1},
        "available_at": "2026-01-02T03:04:05Z",
        "deadline_at": "2026-01-03T03:04:05Z",
        "recovery_safety": "IDEMPOTENT",
        "retry": {
            "max_attempts": 3,
            "initial_delay_ms": 1000,
            "max_delay_ms": 60000,
            "attempt_timeout_ms": 3600000,
        },
        "attempt_count": 1,
        "created_at": "2026-01-02T03:04:05Z",
        "updated_at": "2026-01-02T03:04:05Z",
    }
    return Assignment(
        SESSION,
        an_id(5),
        an_id(attempt + 1_000_000),
        an_id(attempt),
        epoch,
        "2026-01-02T03:04:35Z",
        "2026-01-02T03:04:05Z",
        json.dumps(task).encode(),
    )


def ready_session(slots: int = 4, version: Version = "1") -> Session:
    session = new_session(version)
    session.on_text(hello(capacity=slots, version=version), 0.0)
    session.opened(opened(capacity=slots), 0.0)
    return session


def command(ask: Ask) -> Command:
    """The only command of an action."""
    ((_, only),) = ask.commands
    return only


def answered(
    session: Session,
    ask: Ask,
    outcome: CommandOutcome | Refused,
    now: float = 0.0,
    item: int = 0,
) -> list[Action]:
    """One command of an action is answered."""
    place, asked = ask.commands[item]
    return list(session.attempt_answered(ask.gathering, place, asked, outcome, now))


def sent(actions: Iterable[Action], version: Version = "1") -> list[dict[str, Any]]:
    """The frames among the actions, each checked against the contract."""
    found = []
    for action in actions:
        if isinstance(action, Send):
            assert accepts(action.frame, "serverFrame", version), action.frame
            found.append(json.loads(action.frame))
    return found
