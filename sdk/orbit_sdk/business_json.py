"""Payloads and results on their way out: any JSON-able value, or JSON that is bytes already.

Used by the client before a submission and by the worker before a finish, so both refuse the same
things before they reach the wire: null, lone surrogates, too deep, too large (R-005).
"""

import msgspec
import orjson

from orbit_sdk.protocol.limits import JSON_BYTES_MAX
from orbit_sdk.protocol.strict_json import JsonError, check_json


class NotSendable(ValueError):
    """A value that cannot travel as business JSON. `too_large` tells the one reason apart that a
    smaller value would mend."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large


def encode_value(value: object) -> bytes:
    """The JSON text of a value; `bytes` are taken as JSON text and left as they are.

    Dataclasses, msgspec structs, datetimes, UUIDs and enums become what orjson and msgspec make of
    them. Raises NotSendable.
    """
    if isinstance(value, bytes):
        data = value
    else:
        try:
            data = orjson.dumps(value, default=msgspec.to_builtins)
        except (TypeError, ValueError, RecursionError) as error:
            raise NotSendable(f"not expressible as JSON: {error}") from None
    if data.strip() == b"null":
        raise NotSendable("null is not a value that Orbit carries; send {} or a field instead")
    if len(data) > JSON_BYTES_MAX:
        raise NotSendable(
            f"{len(data)} bytes of JSON where {JSON_BYTES_MAX} are allowed", too_large=True
        )
    try:
        check_json(data)
    except JsonError as error:
        raise NotSendable(f"not acceptable JSON: {error}") from None
    return data
