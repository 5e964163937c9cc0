"""What may be said in public about a text that a typed decoder refused.

The decoder's own message may quote the sender; these words never do, except for the name of an
unknown field, which is cut and stripped of anything but printable ASCII.
"""

import re
from typing import Final, NamedTuple

import msgspec

_FIELD_CHARS_MAX: Final = 64
_PATH: Final = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`\Z")
_NAMED: Final = re.compile(r"`([ -_a-~]*)`")


class Fault(NamedTuple):
    """A reason, and the dotted path of the field it speaks of ('' for the whole text)."""

    reason: str
    field: str


def describe(error: Exception) -> Fault:
    """The reason and place of a decoder's exception, safe to show and to log."""
    message = str(error)
    if isinstance(error, RecursionError):
        return Fault("the JSON text is nested too deep", "")
    if not isinstance(error, msgspec.ValidationError):
        return Fault("the text is not one JSON value", "")
    place = _PATH.search(message)
    path = place.group(1) if place else ""
    for start, reason in _KINDS:
        if message.startswith(start):
            if not start.startswith("Object"):
                return Fault(reason, path)
            named = _NAMED.search(message)
            name = named.group(1)[:_FIELD_CHARS_MAX] if named else ""
            return Fault(reason, f"{path}.{name}" if path else name)
    return Fault("not an allowed value", path)


_KINDS: Final = (
    ("Object missing required field", "a required field is missing"),
    ("Object contains unknown field", "the field is unknown"),
    ("Expected", "the value has the wrong type"),
)
