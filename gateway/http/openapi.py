"""What the OpenAPI page says of bodies and answers (R-051): made from the types that read them."""

from typing import Any, Final

import msgspec

from gateway.http.answers import ErrorPart
from orbit_sdk.protocol.bodies import BatchSubmitItem, SubmitBody
from orbit_sdk.protocol.held import FinishItem, RenewItem
from orbit_sdk.protocol.operations import CancelBody, GateBody, ResolveBody, RetryBody


class BatchItems(msgspec.Struct, frozen=True):
    """The body of a batch: 1 to 1000 items, each judged on its own."""

    items: list[BatchSubmitItem]


class NewQueue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that makes a queue."""

    name: str


class HeldRenewals(msgspec.Struct, frozen=True):
    """The body that renews what an instance holds: 1 to 256 items, each judged on its own."""

    instance_id: str
    instance_secret: str
    items: list[RenewItem]


class HeldReports(msgspec.Struct, frozen=True):
    """The body that reports for an instance: 1 to 256 items, each judged on its own."""

    instance_id: str
    instance_secret: str
    items: list[FinishItem]


class Success(msgspec.Struct, frozen=True):
    """Every success."""

    request_id: str
    data: msgspec.Raw


class Failure(msgspec.Struct, frozen=True):
    """Every failure."""

    request_id: str
    error: ErrorPart


BODIES: Final[dict[str, type]] = {
    "submit_task": SubmitBody,
    "submit_tasks": BatchItems,
    "create_queue": NewQueue,
    "cancel_task": CancelBody,
    "retry_task": RetryBody,
    "resolve_task": ResolveBody,
    "pause_queue": GateBody,
    "resume_queue": GateBody,
    "renew_held": HeldRenewals,
    "finish_held": HeldReports,
}
"""The request body of an operation, by its name."""

_KEYED: Final = BODIES.keys() - {"submit_tasks", "create_queue", "renew_held", "finish_held"}
"""The operations that need an Idempotency-Key (OP-41, R-087)."""

_SHOWN: Final = (*dict.fromkeys(BODIES.values()), Success, Failure)
_REF: Final = "#/components/schemas/{name}"


def components() -> dict[str, Any]:
    """The schemas that `operation` refers to."""
    _, schemas = msgspec.json.schema_components(_SHOWN, ref_template=_REF)
    return schemas


def operation(name: str) -> dict[str, Any]:
    """What one operation takes and answers besides its summary."""
    described: dict[str, Any] = {
        "responses": {
            "2XX": _content("A success.", Success),
            "default": _content("A failure.", Failure),
        }
    }
    if name in BODIES:
        described["requestBody"] = {"required": True} | _content("", BODIES[name])
    if name in _KEYED:
        described["parameters"] = [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": True,
                "schema": {"type": "string", "minLength": 1, "maxLength": 128},
            }
        ]
    return described


def _content(description: str, body: type) -> dict[str, Any]:
    schema = {"$ref": _REF.format(name=body.__name__)}
    found: dict[str, Any] = {"content": {"application/json": {"schema": schema}}}
    return found | ({"description": description} if description else {})
