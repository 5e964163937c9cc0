"""From the text of one message to a checked frame: what every version of the worker socket shares.

Under `frames` and `frames_v2`, which say what a frame is. A frame that is read has the shape and
keeps the rules of its direction, and no object in its text repeats a key; anything else raises
FrameError, whatever the bytes (INV-32).
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from .body_rules import Refused
from .faults import describe
from .ids import is_id
from .limits import FRAME_BYTES_MAX
from .strict_json import JsonError, JsonFault, is_deeper, refuse_repeated_keys

FrameT = TypeVar("FrameT")

encode: Final = msgspec.json.encode
"""A frame as one compact JSON text, business values spliced as they are."""


class FrameError(ValueError):
    """The text is no frame of this direction.

    `reason` is fit to be shown and quotes no value; `message_id` is the frame's own, if the text
    is JSON of allowed size and depth with exactly one valid one at its top, else None (OP-08).
    """

    def __init__(self, reason: str, message_id: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message_id = message_id


class FrameReader(Generic[FrameT]):
    """Reads the frames of one direction of one version.

    `shape` decodes by type alone, `rules` hold what to check of each type, and `depth_max` bounds
    the nesting of the whole text.
    """

    def __init__(
        self,
        shape: Callable[[bytes], FrameT],
        rules: Mapping[type, Callable[[Any], None]],
        depth_max: int,
    ) -> None:
        self._shape = shape
        self._rules = rules
        self._depth_max = depth_max

    def __call__(self, text: str | bytes) -> FrameT:
        """The frame, or FrameError."""
        try:
            data = text.encode() if isinstance(text, str) else text
        except UnicodeEncodeError:
            raise FrameError(JsonFault.LONE_SURROGATE.value, None) from None
        if len(data) > FRAME_BYTES_MAX:
            raise FrameError("the frame is too large", None)
        try:
            frame = self._shape(data)
            self._rules[type(frame)](frame)
            refuse_repeated_keys(
                data, encode(frame), bytes_max=FRAME_BYTES_MAX, depth_max=self._depth_max
            )
        except (Refused, JsonError) as error:
            reason = str(error)
        except (msgspec.DecodeError, RecursionError) as error:
            fault = describe(error)
            reason = f"{fault.field}: {fault.reason}" if fault.field else fault.reason
        else:
            return frame
        raise FrameError(reason, self._message_id(data))

    def _message_id(self, data: bytes) -> str | None:
        if is_deeper(data, self._depth_max):
            return None
        try:
            members = _members(data.decode())
        except ValueError:
            return None
        if not isinstance(members, tuple):
            return None
        found = [value for key, value in members if key == "message_id"]
        if len(found) == 1 and isinstance(found[0], str) and is_id(found[0]):
            return found[0]
        return None


# Objects become tuples of their members, repeats kept; numbers are left as text.
_members: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_int=str, parse_float=str).decode
