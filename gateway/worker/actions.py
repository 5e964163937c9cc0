"""What the session core asks of its shell: the actions, in the order to carry them out.

Plain data, so that a test of the core needs no socket and no store.
"""

from typing import TypeAlias

import msgspec

from gateway.worker.attempts import Ask
from orbit_sdk.protocol import frames
from store.commands import ReturnLease, SetCapacity


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write one text frame."""

    frame: bytes


class Register(msgspec.Struct, frozen=True):
    """Open the session in the store; then call `opened` or `refused`."""

    hello: frames.HelloBody


class Declare(msgspec.Struct, frozen=True):
    """Give a capacity command to its lane; then call `capacity_answered` with this and the answer.
    One that the lane refuses is answered before those that it has."""

    message_id: str
    command: SetCapacity


class Return(msgspec.Struct, frozen=True, gc=False):
    """Give the lease of an assignment back that will not be written; nobody waits for an answer."""

    command: ReturnLease


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the socket, after everything sent before."""

    code: int
    reason: str


Action: TypeAlias = Send | Register | Ask | Declare | Return | Close
