"""Reading and writing the frames of `pulse.worker.v2`: v1's rules, for batches of operations.

Between a socket and a session core, on both ends. A frame that decodes satisfies
`schemas/worker.v2.json` for its direction and the rules that a schema cannot state, which are those
of `frames`. Encoding checks nothing: what we send is built from checked values.
"""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from .body_rules import Refused
from .frame_reading import FrameError, FrameReader, encode
from .frame_rules_v2 import CLIENT_RULES, SERVER_RULES
from .limits import BATCH_DEPTH_MAX
from .shapes import Body, CommandResult, ErrorBody, LeaseBody, Receipt, WelcomeBody
from .shapes_v2 import (
    PROTOCOL_VERSION,
    AckFrame,
    AssignFrame,
    AssignFrameRaw,
    AssignmentsBody,
    AssignmentsBodyRaw,
    AttemptItem,
    AttemptsBody,
    CancelBody,
    CancelFrame,
    CapacityFrame,
    ClientFrame,
    DrainBody,
    DrainFrame,
    ErrorFrame,
    FinishesBody,
    FinishFrame,
    FinishItem,
    Frame,
    HelloFrame,
    ItemError,
    ItemResult,
    RenewFrame,
    ResultsBody,
    ResumeFrame,
    ServerFrame,
    StartFrame,
    WelcomeFrame,
)
from .states import AttemptState

__all__ = [
    "PROTOCOL_VERSION",
    "AckFrame",
    "AssignFrame",
    "AssignFrameRaw",
    "AssignmentsBody",
    "AssignmentsBodyRaw",
    "AttemptItem",
    "AttemptsBody",
    "CancelBody",
    "CancelFrame",
    "CapacityFrame",
    "ClientFrame",
    "DrainBody",
    "DrainFrame",
    "ErrorFrame",
    "FinishFrame",
    "FinishItem",
    "FinishesBody",
    "FrameError",
    "HelloFrame",
    "ItemError",
    "ItemResult",
    "RenewFrame",
    "ResultsBody",
    "ResumeFrame",
    "ServerFrame",
    "StartFrame",
    "WelcomeFrame",
    "decode_client_frame",
    "decode_server_frame",
    "encode_frame",
]


class _ResultWire(Body, frozen=True):
    """Any result of an item; which one, its fields say."""

    receipt: Receipt | UnsetType = UNSET
    lease: LeaseBody | UnsetType = UNSET
    deduplicated: bool | UnsetType = UNSET
    active: bool | UnsetType = UNSET
    state: AttemptState | UnsetType = UNSET
    lease_until: str | UnsetType = UNSET
    server_time: str | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class _AckBodyWire(Body, frozen=True):
    """Either body of an ack."""

    results: tuple[_ResultWire, ...] | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    epoch: str | UnsetType = UNSET
    server_time: str | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    lease_duration_ms: int | UnsetType = UNSET
    draining: bool | UnsetType = UNSET


class _AckWire(Frame, frozen=True, tag="ack"):
    session_id: str
    reply_to: str
    body: _AckBodyWire


_client_shape: Final = msgspec.json.Decoder(ClientFrame).decode
_server_shape: Final = msgspec.json.Decoder(
    WelcomeFrame | AssignFrame | _AckWire | ErrorFrame | CancelFrame | DrainFrame
).decode


def _read_server(data: bytes) -> ServerFrame:
    shape = _server_shape(data)
    return _ack_frame(shape) if isinstance(shape, _AckWire) else shape


def _ack_frame(wire: _AckWire) -> AckFrame:
    return AckFrame(
        wire.protocol_version,
        wire.message_id,
        wire.session_id,
        wire.reply_to,
        _ack_body(wire.body),
    )


def _ack_body(body: _AckBodyWire) -> WelcomeBody | ResultsBody:
    if body.results is not UNSET:
        found = ResultsBody(tuple([_result(result) for result in body.results]))
        if body == _AckBodyWire(body.results):
            return found
    elif (
        body.session_id is not UNSET
        and body.epoch is not UNSET
        and body.server_time is not UNSET
        and body.expires_at is not UNSET
        and body.lease_duration_ms is not UNSET
        and body.draining is not UNSET
    ):
        return WelcomeBody(
            body.session_id,
            body.epoch,
            body.server_time,
            body.expires_at,
            body.lease_duration_ms,
            body.draining,
        )
    raise Refused("body: neither a welcome nor results")


def _result(wire: _ResultWire) -> ItemResult:
    receipt, lease, deduplicated, active, state, until, server_time, error = (
        wire.receipt,
        wire.lease,
        wire.deduplicated,
        wire.active,
        wire.state,
        wire.lease_until,
        wire.server_time,
        wire.error,
    )
    if receipt is not UNSET:
        if (
            lease is not UNSET
            and deduplicated is not UNSET
            and active is state is until is server_time is error is UNSET
        ):
            return CommandResult(receipt, lease, deduplicated)
    elif error is not UNSET:
        if lease is deduplicated is active is state is until is server_time is UNSET:
            return ItemError(error)
    elif (
        active is not UNSET
        and state is not UNSET
        and until is not UNSET
        and server_time is not UNSET
        and lease is deduplicated is UNSET
    ):
        return LeaseBody(active, state, until, server_time)
    raise Refused("results: an item is neither a command result nor a lease nor an error")


_client_reader: Final = FrameReader[ClientFrame](_client_shape, CLIENT_RULES, BATCH_DEPTH_MAX)
_server_reader: Final = FrameReader[ServerFrame](_read_server, SERVER_RULES, BATCH_DEPTH_MAX)


def decode_client_frame(text: str | bytes) -> ClientFrame:
    """The worker's frame, or FrameError."""
    return _client_reader(text)


def decode_server_frame(text: str | bytes) -> ServerFrame:
    """The server's frame, or FrameError."""
    return _server_reader(text)


def encode_frame(frame: ClientFrame | ServerFrame | AssignFrameRaw) -> bytes:
    """The frame as one compact JSON text, business values spliced as they are."""
    return encode(frame)
