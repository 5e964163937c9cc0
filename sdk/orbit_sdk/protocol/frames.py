"""Reading and writing the frames of `pulse.worker.v1`: the schema's rules and the runtime's.

Between a socket and a session core, on both ends. A frame that decodes satisfies
`schemas/worker.v1.json` for its direction and the rules a schema cannot state (R-005, R-019): size,
depth, no repeated key anywhere, strict business JSON, integers written as integers, real calendar
dates. Encoding checks nothing: what we send is built from checked values.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw

from .frame_reading import FrameError, FrameReader, encode
from .frame_rules import CLIENT_RULES, SERVER_RULES
from .limits import JSON_DEPTH_MAX
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


class _AckWire(Frame, frozen=True, tag="ack"):
    session_id: str
    reply_to: str
    body: Raw


_client_shape: Final = msgspec.json.Decoder(ClientFrame).decode
_server_shape: Final = msgspec.json.Decoder(
    WelcomeFrame | AssignFrame | _AckWire | ErrorFrame
).decode
_ACK_SHAPES: Final[tuple[tuple[bytes, Callable[[Raw], AckBody]], ...]] = (
    (b'"receipt"', msgspec.json.Decoder(CommandResult).decode),
    (b'"active"', msgspec.json.Decoder(LeaseBody).decode),
    (b'"draining"', msgspec.json.Decoder(WelcomeBody).decode),
)


def _read_server(data: bytes) -> ServerFrame:
    shape = _server_shape(data)
    return _ack_frame(shape) if isinstance(shape, _AckWire) else shape


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


_client_reader: Final = FrameReader[ClientFrame](_client_shape, CLIENT_RULES, JSON_DEPTH_MAX)
_server_reader: Final = FrameReader[ServerFrame](_read_server, SERVER_RULES, JSON_DEPTH_MAX)


def decode_client_frame(text: str | bytes) -> ClientFrame:
    """The worker's frame, or FrameError."""
    return _client_reader(text)


def decode_server_frame(text: str | bytes) -> ServerFrame:
    """The server's frame, or FrameError."""
    return _server_reader(text)


def encode_frame(frame: ClientFrame | ServerFrame | AssignFrameRaw) -> bytes:
    """The frame as one compact JSON text, business values spliced as they are."""
    return encode(frame)
