"""What travels through Redis, as bytes of one stream field.

Where: `store.bus` writes and reads them; gateways and dispatchers see the structs.
Promise: every message is a hint (OP-95). A reader gets well-formed structs only: ids of the right
form, numbers in range; anything else raises MessageError and is the reader's to skip. None carries
a secret.
"""

from typing import Annotated

import msgspec

from store.dispatch import Assignment, Intent

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$", max_length=32)]
EntryId = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$", max_length=41)]
KeyId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}$", max_length=16)]
RouteId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Slots = Annotated[int, msgspec.Meta(ge=0, le=65_535)]

NOTHING_SEEN: EntryId = "0-0"


class MessageError(ValueError):
    """The bytes are no message of the wanted kind."""


class CapacityLevel(msgspec.Struct, frozen=True, array_like=True):
    """How many slots of a session are free: an absolute level, never a change.

    seen: id of the last entry of its node's stream that the gateway has handled for this session,
    so that a dispatcher can subtract what it has sent since; NOTHING_SEEN at first.
    """

    session_id: Id
    node_id: Id
    queue_id: Id
    routes: tuple[RouteId, ...]
    free: Slots
    seen: EntryId


class Wake(msgspec.Struct, frozen=True, array_like=True):
    """Tasks may be ready on these (queue id, route id)."""

    routes: tuple[tuple[Id, RouteId], ...]


class Levels(msgspec.Struct, frozen=True, array_like=True):
    """Fresh capacity levels, one a session; a later one of a session replaces the earlier."""

    levels: tuple[CapacityLevel, ...]


class Assigned(msgspec.Struct, frozen=True, array_like=True, tag="assigned"):
    """Claimed tasks for sessions of one node. May come twice, late, or for a session gone."""

    assignments: tuple[Assignment, ...]


class Superseded(msgspec.Struct, frozen=True, array_like=True, tag="superseded"):
    """A newer session of the same instance was opened elsewhere."""

    session_id: Id


class Cancelled(msgspec.Struct, frozen=True, array_like=True, tag="cancelled"):
    """An attempt of this session is not wanted any more: it was taken back, or is to stop."""

    session_id: Id
    attempt_id: Id
    reason: Intent


class Over(msgspec.Struct, frozen=True, array_like=True, tag="over"):
    """An attempt of this session has ended past its socket: it takes no slot any more."""

    session_id: Id
    attempt_id: Id


class Revoked(msgspec.Struct, frozen=True, array_like=True, tag="revoked"):
    """A credential was revoked: whoever believes it is to ask the store."""

    key_id: KeyId


Notice = Superseded | Cancelled | Over
NodeMessage = Assigned | Notice | Revoked
Message = Wake | Levels | NodeMessage

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[str, msgspec.msgpack.Decoder[Message]] = {
    "wake": msgspec.msgpack.Decoder(Wake),
    "capacity": msgspec.msgpack.Decoder(Levels),
    "node": msgspec.msgpack.Decoder(NodeMessage),
}


def encode_message(message: Message) -> bytes:
    """The bytes of one stream field."""
    return _encoder.encode(message)


def decode_message(kind: str, data: bytes) -> Message:
    """The message of a stream of `kind` ("wake", "capacity", "node"). Raises MessageError."""
    try:
        return _decoders[kind].decode(data)
    except msgspec.MsgspecError as error:
        raise MessageError(str(error)) from None


def entry_order(entry_id: str) -> tuple[int, int]:
    """Sort key of a stream entry id (`milliseconds-number`). Raises ValueError on other text."""
    high, low = entry_id.split("-")
    return int(high), int(low)
