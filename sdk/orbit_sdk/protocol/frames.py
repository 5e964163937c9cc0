"""Reading and writing the frames of `pulse.worker.v1`: the schema's rules and the runtime's.

Between a socket and a session core, on both ends. A frame that decodes satisfies
`schemas/worker.v1.json` for its direction and the rules a schema cannot state (R-005, R-019): size,
depth, no repeated key anywhere, strict business JSON, integers written as integers, real calendar
dates. Encoding checks nothing: what we send is built from checked values.
"""

import json
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Raw

from .faults import describe
from .frame_rules import CLIENT_RULES, SERVER_RULES, Refused
from .ids import is_id
from .limits import FRAME_BYTES_MAX, JSON_DEPTH_MAX
from .shapes import (
    PROTOCOL_VERSION,
    AckBody,
    AckFrame,
    AssignBody,
    AssignBodyRaw,
    AssignedTask,
    AssignFrame,
    AssignFrameRaw,
    AttemptRef,
    Capability,
    CapacityBody,
    CapacityFrame,
    ClientFrame,
    CommandResult,
    ErrorBody,
    ErrorFrame,
    FinishBody,
    FinishFrame,
    Frame,
    HelloBody,
    HelloFrame,
    LeaseBody,
    Receipt,
    RenewFrame,
    ResumeFrame,
    Retry,
    ServerFrame,
    StartFrame,
    WelcomeBody,
    WelcomeFrame,
)
from .strict_json import JsonError, JsonFault, is_deeper, refuse_repeated_keys

__all__ = [
    "PROTOCOL_VERSION",
    "AckBody",
    "AckFrame",
    "AssignBody",
    "AssignBodyRaw",
    "AssignFrame",
    "AssignFrameRaw",
    "AssignedTask",
    "AttemptRef",
    "Capability",
    "CapacityBody",
    "CapacityFrame",
    "ClientFrame",
    "CommandResult",
    "ErrorBody",
    "ErrorFrame",
    "FinishBody",
    "FinishFrame",
    "FrameError",
    "HelloBody",
    "HelloFrame",
    "LeaseBody",
    "Receipt",
    "RenewFrame",
    "ResumeFrame",
    "Retry",
    "ServerFrame",
    "StartFrame",
    "WelcomeBody",
    "WelcomeFrame",
    "decode_client_frame",
    "decode_server_frame",
    "encode_frame",
]


class FrameError(ValueError):
    """The text is no frame of this direction.

    `reason` is fit to be shown and quotes no value; `message_id` is the frame's own, if the text
    is JSON of allowed size and depth with exactly one valid one at its top, else None (OP-08).
    """

    def __init__(self, reason: str, message_id: str | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.message_id = message_id


def decode_client_frame(text: str | bytes) -> ClientFrame:
    """The worker's frame, or FrameError."""
    return _read(text, _read_client)


def decode_server_frame(text: str | bytes) -> ServerFrame:
    """The server's frame, or FrameError."""
    return _read(text, _read_server)


def encode_frame(frame: ClientFrame | ServerFrame | AssignFrameRaw) -> bytes:
    """The frame as one compact JSON text, business values spliced as they are."""
    return _encode(frame)


class _AckWire(Frame, frozen=True, tag="ack"):
    session_id: str
    reply_to: str
    body: Raw


_FrameT = TypeVar("_FrameT", ClientFrame, ServerFrame)

_encode: Final = msgspec.json.encode
_client_shape: Final = msgspec.json.Decoder(ClientFrame).decode
_server_shape: Final = msgspec.json.Decoder(
    WelcomeFrame | AssignFrame | _AckWire | ErrorFrame
).decode
_ACK_SHAPES: Final[tuple[tuple[bytes, Callable[[Raw], AckBody]], ...]] = (
    (b'"receipt"', msgspec.json.Decoder(CommandResult).decode),
    (b'"active"', msgspec.json.Decoder(LeaseBody).decode),
    (b'"draining"', msgspec.json.Decoder(WelcomeBody).decode),
)


def _read_client(data: bytes) -> ClientFrame:
    frame = _client_shape(data)
    CLIENT_RULES[type(frame)](frame)
    refuse_repeated_keys(data, _encode(frame), bytes_max=FRAME_BYTES_MAX)
    return frame


def _read_server(data: bytes) -> ServerFrame:
    shape = _server_shape(data)
    frame = _ack_frame(shape) if isinstance(shape, _AckWire) else shape
    SERVER_RULES[type(frame)](frame)
    refuse_repeated_keys(data, _encode(frame), bytes_max=FRAME_BYTES_MAX)
    return frame


def _ack_frame(wire: _AckWire) -> AckFrame:
    """The three bodies have no key set in common (R-018), so at most one decoder takes the body.

    The key that tells them apart may be written with escapes; then the order is only a guess.
    """
    body = wire.body
    spelled = bytes(body)
    shapes = sorted(_ACK_SHAPES, key=lambda shape: shape[0] not in spelled)
    for _, decode in shapes[:-1]:
        try:
            return AckFrame(
                wire.protocol_version, wire.message_id, wire.session_id, wire.reply_to, decode(body)
            )
        except msgspec.ValidationError:
            continue
    last = shapes[-1][1](body)
    return AckFrame(wire.protocol_version, wire.message_id, wire.session_id, wire.reply_to, last)


def _read(text: str | bytes, read: Callable[[bytes], _FrameT]) -> _FrameT:
    try:
        data = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError:
        raise FrameError(JsonFault.LONE_SURROGATE.value, None) from None
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError("the frame is too large", None)
    try:
        return read(data)
    except (Refused, JsonError) as error:
        reason = str(error)
    except (msgspec.DecodeError, RecursionError) as error:
        fault = describe(error)
        reason = f"{fault.field}: {fault.reason}" if fault.field else fault.reason
    raise FrameError(reason, _message_id(data))


def _message_id(data: bytes) -> str | None:
    if is_deeper(data, JSON_DEPTH_MAX):
        return None
    try:
        members = _members(data.decode())
    except ValueError:
        return None
    if not isinstance(members, tuple):
        return None
    found = [value for key, value in members if key == "message_id"]
    return found[0] if len(found) == 1 and isinstance(found[0], str) and is_id(found[0]) else None


# Objects become tuples of their members, repeats kept; numbers are left as text.
_members: Final = json.JSONDecoder(object_pairs_hook=tuple, parse_int=str, parse_float=str).decode
