"""The contract's schema, and the verdict on each frame that a server sends (R-013).

The schema is a copy of `schemas/worker.v1.json` that travels with the package; a test of the
repository holds the two together.
"""

import json
from importlib import resources
from typing import Any, Final, Protocol

INSTALL: Final = "pip install 'orbit-sdk[conformance]'"
SCHEMA_NAME: Final = "worker.v1.json"


class ValidatorMissing(Exception):
    """The JSON Schema validator is an extra, and it is not installed here."""


class _Validator(Protocol):
    def validate(self, instance: Any) -> None: ...


def schema_bytes() -> bytes:
    """The schema as it ships with the package."""
    return resources.files(__package__).joinpath(SCHEMA_NAME).read_bytes()


class Contract:
    """Holds server frames against the schema."""

    def __init__(self) -> None:
        try:
            import jsonschema_rs
        except ImportError:
            raise ValidatorMissing(
                f"the schema validator is not installed; install it with: {INSTALL}"
            ) from None
        schema = {**json.loads(schema_bytes()), "$ref": "#/$defs/serverFrame"}
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
