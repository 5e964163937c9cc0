"""One frame of each kind, written out, for both versions of the worker socket."""

import json
from typing import Any

from tests.contract import made_frames as made


def sample(kind: str, version: str = "1", **fields: Any) -> made.Members:
    head = {"protocol_version": version, "type": kind, "message_id": "a1" * 16}
    made_sample = tree({**head, **fields})
    assert isinstance(made_sample, made.Members)
    return made_sample


def tree(value: Any) -> Any:
    if isinstance(value, dict):
        return made.Members(tuple((json.dumps(key), tree(item)) for key, item in value.items()))
    if isinstance(value, list):
        return made.Items(tuple(tree(item) for item in value))
    return json.dumps(value)


ID, SECRET, TIME = "0f" * 16, "A" * 43, "2026-09-17T08:00:30.5Z"
NAMES = {"handler": "report.make", "handler_version": "1", "payload_version": "1"}
REF = {"task_id": ID, "attempt_id": ID, "epoch": "7", "lease_secret": SECRET}
WELCOME = {
    "session_id": ID,
    "epoch": "1",
    "server_time": TIME,
    "expires_at": TIME,
    "lease_duration_ms": 30000,
    "draining": False,
}
LEASE = {"active": True, "state": "RUNNING", "lease_until": TIME, "server_time": TIME}
RECEIPT = {
    "operation": "start",
    "task_state": "RUNNING",
    "attempt_state": "RUNNING",
    "task_revision": "3",
    "lease_until": TIME,
    "disposition": "APPLIED",
}
TASK = {
    "id": ID,
    "namespace_id": ID,
    "queue_id": ID,
    "state": "LEASED",
    "revision": "2",
    **NAMES,
    "payload": {"n": 1},
    "result": [1],
    "business_key": "order-7",
    "available_at": TIME,
    "start_deadline_at": TIME,
    "deadline_at": TIME,
    "recovery_safety": "IDEMPOTENT",
    "retry": {
        "max_attempts": 3,
        "initial_delay_ms": 0,
        "max_delay_ms": 0,
        "attempt_timeout_ms": 1,
    },
    "attempt_count": 1,
    "cancel_requested_at": TIME,
    "completed_at": TIME,
    "created_at": TIME,
    "updated_at": TIME,
}
ASSIGNMENT = {
    "task": TASK,
    "attempt_id": ID,
    "epoch": "1",
    "lease_secret": SECRET,
    "lease_until": TIME,
    "server_time": TIME,
}
HELLO = {
    "instance_id": ID,
    "instance_secret": SECRET,
    "queue_id": ID,
    "capabilities": [NAMES, {**NAMES, "handler": "b"}],
    "capacity": 4,
}
CAPACITY = {"sequence": "1", "capacity": 0, "drain": True}
RESULT = {"receipt": RECEIPT, "lease": LEASE, "deduplicated": False}
ERROR = {"code": "bad_frame", "message": "No."}
CLIENT_SAMPLES = [
    sample("worker.hello", body=HELLO),
    sample("worker.capacity", session_id=ID, body=CAPACITY),
    *(
        sample(kind, session_id=ID, body=REF)
        for kind in ("worker.resume", "task.start", "task.renew")
    ),
    *(
        sample("task.finish", session_id=ID, body={"ref": REF, "result": {"a": 1}, **ending})
        for ending in (
            {"outcome": "SUCCEEDED"},
            {"outcome": "SUCCEEDED", "error_code": ""},
            {"outcome": "FAILED", "error_code": "e.1"},
            {"outcome": "UNKNOWN", "error_code": "x"},
        )
    ),
]
SERVER_SAMPLES = [
    sample("worker.welcome", session_id=ID, reply_to=ID, body=WELCOME),
    *(
        sample("ack", session_id=ID, reply_to=ID, body=body)
        for body in (
            WELCOME,
            LEASE,
            {**LEASE, "active": False, "state": "EXPIRED"},
            RESULT,
        )
    ),
    sample("task.assign", session_id=ID, body=ASSIGNMENT),
    sample("error", error=ERROR),
    sample("error", session_id=ID, reply_to=ID, error=ERROR),
]

ITEM = {"message_id": "b2" * 16, **REF}
OTHER = {**ITEM, "message_id": "c3" * 16}
CLIENT_SAMPLES_V2 = [
    sample("worker.hello", "2", body=HELLO),
    sample("worker.capacity", "2", session_id=ID, body=CAPACITY),
    *(
        sample(kind, "2", session_id=ID, body={"items": items})
        for kind, items in (
            ("worker.resume", [ITEM]),
            ("task.start", [ITEM, OTHER]),
            ("task.renew", [ITEM]),
        )
    ),
    sample(
        "task.finish",
        "2",
        session_id=ID,
        body={
            "items": [
                {"message_id": "b2" * 16, "ref": REF, "result": {"a": 1}, **ending}
                for ending in (
                    {"outcome": "SUCCEEDED"},
                    {"outcome": "FAILED", "error_code": "e.1"},
                    {"outcome": "CANCELLED", "error_code": "cancelled"},
                )
            ]
        },
    ),
]
SERVER_SAMPLES_V2 = [
    sample("worker.welcome", "2", session_id=ID, reply_to=ID, body=WELCOME),
    *(
        sample("ack", "2", session_id=ID, reply_to=ID, body=body)
        for body in (
            WELCOME,
            {"results": [LEASE]},
            {"results": [RESULT, {"error": ERROR}, {**LEASE, "active": False}]},
        )
    ),
    sample("task.assign", "2", session_id=ID, body={"assignments": [ASSIGNMENT]}),
    sample("error", "2", session_id=ID, reply_to=ID, error=ERROR),
    *(
        sample(
            "task.cancel",
            "2",
            session_id=ID,
            body={"attempt_id": ID, "task_id": ID, "epoch": "7", "reason": reason},
        )
        for reason in ("caller", "deadline")
    ),
    sample("worker.drain", "2", session_id=ID, body={"reason": "shutdown"}),
]
