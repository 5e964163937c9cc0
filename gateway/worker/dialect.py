"""What the versions of the worker socket have in common, as the session core sees it.

A dialect reads a worker's frames into requests and spells what a worker is told; the core knows
neither version. To it v1 is v2 with batches of one, without the frames that push (architecture
section 10).
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

import msgspec

from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames_v2 import AttemptItem, FinishItem
from store.commands import CommandOutcome
from store.dispatch import Intent


class Operation(StrEnum):
    """What an attempt command asks for; the value is the receipt's word."""

    START = "start"
    RENEW = "renew"
    FINISH = "finish"
    RESUME = "resume"


class Hello(msgspec.Struct, frozen=True, gc=False):
    """Who connects."""

    message_id: str
    body: frames.HelloBody


class Declaration(msgspec.Struct, frozen=True, gc=False):
    """A capacity level."""

    message_id: str
    session_id: str
    body: frames.CapacityBody


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Operations of one kind, to be answered together; FINISH has finish items."""

    message_id: str
    session_id: str
    operation: Operation
    items: Sequence[AttemptItem | FinishItem]


Request: TypeAlias = Hello | Declaration | Batch
Result: TypeAlias = CommandOutcome | ErrorCode
"""What became of one operation: an outcome whose code is ok, or why there is none."""


class Cancellation(msgspec.Struct, frozen=True, gc=False):
    """An attempt that is not wanted any more, as its worker knows it, and who wants that."""

    attempt_id: str
    task_id: str
    epoch: str
    reason: Intent


class Dialect(Protocol):
    """One version. Everything written is a valid server frame of it."""

    @property
    def subprotocol(self) -> str:
        """Its name in the handshake."""

    def read(self, text: str) -> Request:
        """The request of one message. Raises FrameError."""

    def welcome(self, message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
        """The answer to a hello (R-022)."""

    def level(self, message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
        """The answer to a capacity update: a welcome body, by shape (R-040)."""

    def answer(
        self,
        message_id: str,
        session_id: str,
        reply_to: str,
        operation: Operation,
        results: Sequence[Result],
    ) -> bytes:
        """The answer to a batch, one result an item, in order (R-039)."""

    def error(
        self, message_id: str, code: ErrorCode, *, session_id: str | None, reply_to: str | None
    ) -> bytes:
        """A refusal of a whole frame (with `reply_to`), or the last word before a close (without);
        R-016, R-017."""

    def assign(
        self, next_id: Callable[[], str], session_id: str, given: Sequence[frames.AssignBodyRaw]
    ) -> list[bytes]:
        """Assignments, in as many frames as they need (R-030)."""

    def cancel(self, message_id: str, session_id: str, what: Cancellation) -> bytes | None:
        """Stop an attempt (R-127); None where the answer to its next renewal has to say it."""

    def drain(self, message_id: str, session_id: str) -> bytes | None:
        """This node leaves (R-129); None where only answers can say it (OP-04)."""
