"""The versions of the contract, and the verdict on each frame that a server sends (R-013).

The schemas are copies of `schemas/worker.v*.json` that travel with the package; a test of the
repository holds them together.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final, Protocol

INSTALL: Final = "pip install 'orbit-sdk[conformance]'"


@dataclass(frozen=True, slots=True)
class Version:
    """A subprotocol of the worker socket."""

    name: str
    subprotocol: str
    number: str
    """What its frames say as `protocol_version`."""
    batched: frozenset[str] = frozenset()
    """The frames that carry items (OP-06)."""


V1: Final = Version("v1", "pulse.worker.v1", "1")
V2: Final = Version(
    "v2",
    "pulse.worker.v2",
    "2",
    frozenset({"task.start", "task.renew", "task.finish", "worker.resume"}),
)
VERSIONS: Final = (V1, V2)


class ValidatorMissing(Exception):
    """The JSON Schema validator is an extra, and it is not installed here."""


class _Validator(Protocol):
    def validate(self, instance: Any) -> None: ...


def schema_bytes(version: Version) -> bytes:
    """The schema as it ships with the package."""
    return resources.files(__package__).joinpath(f"worker.{version.name}.json").read_bytes()


class Contract:
    """Holds server frames against the schema of one version."""

    def __init__(self, version: Version) -> None:
        self.version: Final = version
        try:
            import jsonschema_rs
        except ImportError:
            raise ValidatorMissing(
                f"the schema validator is not installed; install it with: {INSTALL}"
            ) from None
        schema = {**json.loads(schema_bytes(version)), "$ref": "#/$defs/serverFrame"}
        del schema["oneOf"], schema["$id"]
        self._error: type[Exception] = jsonschema_rs.ValidationError
        self._validator: _Validator = jsonschema_rs.Draft202012Validator(
            schema, validate_formats=True
        )

    def read(self, text: str) -> tuple[dict[str, Any], str]:
        """The frame that a text is, and why it is none of the contract's ('' if it is one)."""
        try:
            frame = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        except ValueError as error:
            return {}, f"not a JSON text of the contract: {error}"
        try:
            self._validator.validate(frame)
        except self._error as error:
            return frame if isinstance(frame, dict) else {}, f"not in the schema: {error}"
        return frame, ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
