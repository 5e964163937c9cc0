"""What the session core asks of its shell: the actions, in the order to carry them out.

Plain data, so that a test of the core needs no socket and no store.
"""

from enum import StrEnum
from typing import TypeAlias

import msgspec

from orbit_sdk.protocol import frames
from store.commands import AttemptCommand, FinishCommand, ReturnLease, SetCapacity


class Operation(StrEnum):
    """What an attempt command asks for; the value is the receipt's word."""

    START = "start"
    RENEW = "renew"
    FINISH = "finish"
    RESUME = "resume"


class Send(msgspec.Struct, frozen=True, gc=False):
    """Write one text frame."""

    frame: bytes


class Register(msgspec.Struct, frozen=True):
    """Open the session in the store; then call `opened` or `refused`."""

    hello: frames.HelloBody


class Ask(msgspec.Struct, frozen=True):
    """Give an attempt command to its lane; then call `attempt_answered`."""

    operation: Operation
    command: AttemptCommand | FinishCommand


class Declare(msgspec.Struct, frozen=True):
    """Give a capacity command to its lane; then call `capacity_answered`, in order."""

    command: SetCapacity


class Return(msgspec.Struct, frozen=True, gc=False):
    """Give the lease of an assignment back that will not be written; nobody waits for an answer."""

    command: ReturnLease


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close the socket, after everything sent before."""

    code: int
    reason: str


Action: TypeAlias = Send | Register | Ask | Declare | Return | Close
