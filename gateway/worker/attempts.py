"""The attempts of one connection: proofs, commands for the store, and answers gathered by frame.

Pure, under the session core. A frame of n items makes n commands, each judged on its own; the frame
is answered once all of them are. How long that takes is bounded by the lanes' patience: a command
whose attempt is busy waits there for its turn.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from gateway.lanes import Refused
from gateway.worker.dialect import Batch, Cancellation, Operation, Result
from gateway.worker.lease_secret import KeyRing
from gateway.worker.slots import Grant, Slots
from orbit_sdk.protocol import bodies
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames import AttemptRef
from orbit_sdk.protocol.frames_v2 import AttemptItem, FinishItem
from orbit_sdk.protocol.states import ATTEMPT_ACTIVE
from store.commands import AttemptCommand, CommandOutcome, FinishCommand
from store.dispatch import Intent

Command: TypeAlias = AttemptCommand | FinishCommand


class Gathering(msgspec.Struct, eq=False):
    """The results of one frame so far; `missing` of them are still to come. `freed`: slots were
    given back since somebody last looked."""

    message_id: str
    operation: Operation
    results: list[Result | None]
    missing: int
    freed: bool = False
    over: ErrorCode | None = None
    """Why the session is over, if that is what the store said."""


class Ask(msgspec.Struct, frozen=True):
    """Give commands to the lane of their operation; for each answer call `attempt_answered` with
    the gathering and the command's place in it."""

    gathering: Gathering
    commands: Sequence[tuple[int, Command]]


class Attempts:
    """Who holds what here. `gate_id` is that of the session's queue, once it is known."""

    def __init__(
        self,
        session_id: str,
        namespace_id: str,
        ring: KeyRing,
        hold_s: float,
        unproven: Callable[[str], None],
    ) -> None:
        self.gate_id = 0
        self.slots = Slots(hold_s)
        self.open_commands = 0
        """Commands given to the lanes and not yet answered."""
        self._session_id = session_id
        self._namespace_id = namespace_id
        self._ring = ring
        self._unproven = unproven

    def ask(self, batch: Batch, now: float) -> Ask:
        """The commands of a frame; an item without a valid proof is answered here (INV-21)."""
        operation = batch.operation
        make: Callable[..., Command] = (
            self._finish_command if operation is Operation.FINISH else self._attempt_command
        )
        commands: list[tuple[int, Command]] = []
        results: list[Result | None] = [None] * len(batch.items)
        for place, item in enumerate(batch.items):
            ref = item.ref if isinstance(item, FinishItem) else item
            if not self._proves(ref):
                results[place] = ErrorCode.ATTEMPT_NOT_FOUND
                self._unproven(ref.attempt_id)
                continue
            if operation is Operation.RESUME:
                # Counted as held from here on, so that no twin takes it for one never handed over.
                self.slots.take(ref.attempt_id, now)
            commands.append((place, make(item)))
        self.open_commands += len(commands)
        return Ask(Gathering(batch.message_id, operation, results, len(commands)), commands)

    def answered(
        self,
        gathering: Gathering,
        place: int,
        command: Command,
        outcome: CommandOutcome | Refused,
        now: float,
    ) -> None:
        """What the store said; the lanes never overlap two commands of one attempt."""
        self.open_commands -= 1
        gathering.missing -= 1
        if isinstance(outcome, Refused):
            gathering.results[place] = outcome.code
        elif outcome.code == "ok":
            gathering.results[place] = outcome
            self._count(gathering, command, outcome, now)
        else:
            code = ERROR_CODES.get(outcome.code, ErrorCode.INTERNAL)
            gathering.results[place] = code
            if code in SESSION_OVER:
                gathering.over = code
            if code is ErrorCode.ATTEMPT_NOT_FOUND or gathering.operation is Operation.RESUME:
                self.slots.free(command.attempt_id)
                gathering.freed = True

    def hand_over(self, attempt_id: str, task_id: str, epoch: int, now: float) -> Grant:
        """Take a slot for an assignment that goes to the worker now, with its secret."""
        text = str(epoch)
        grant = Grant(task_id, text, self._ring.derive(attempt_id, text))
        self.slots.take(attempt_id, now, grant)
        return grant

    def cancellation(self, attempt_id: str, reason: Intent) -> Cancellation | None:
        """What to tell the worker of an attempt that it holds; None if it is not known to."""
        grant = self.slots.grant(attempt_id)
        if grant is None:
            return None
        return Cancellation(attempt_id, grant.task_id, grant.epoch, reason)

    def _count(
        self, gathering: Gathering, command: Command, outcome: CommandOutcome, now: float
    ) -> None:
        """An attempt holds its slot exactly while it may be live (INV-12)."""
        attempt_id = command.attempt_id
        if outcome.settled or outcome.lease_state not in ATTEMPT_ACTIVE:
            self.slots.free(attempt_id)
            gathering.freed = True
        elif gathering.operation is Operation.RESUME:
            self.slots.take(attempt_id, now, Grant(command.task_id, str(command.epoch), ""))
        else:
            self.slots.take(attempt_id, now)

    def _attempt_command(self, item: AttemptItem) -> AttemptCommand:
        return AttemptCommand(
            self._namespace_id,
            self._session_id,
            self.gate_id,
            item.task_id,
            item.attempt_id,
            int(item.epoch),
            item.message_id,
        )

    def _finish_command(self, item: FinishItem) -> FinishCommand:
        ref = item.ref
        result = bytes(item.result)
        error_code = item.error_code or ""
        return FinishCommand(
            self._namespace_id,
            self._session_id,
            ref.task_id,
            ref.attempt_id,
            int(ref.epoch),
            item.message_id,
            bodies.finish_hash(item.outcome, error_code, result),
            item.outcome,
            error_code or None,
            result,
        )

    def _proves(self, ref: AttemptRef) -> bool:
        """Whether the caller holds the attempt's secret; remembered for attempts given here."""
        if self.slots.proves(ref.attempt_id, ref.epoch, ref.lease_secret):
            return True
        return self._ring.verify(ref.attempt_id, ref.epoch, ref.lease_secret)


ERROR_CODES = {code.value: code for code in ErrorCode}
"""The codes that the store's words stand for."""
SESSION_OVER = (ErrorCode.SESSION_SUPERSEDED, ErrorCode.SESSION_EXPIRED)
"""Refusals that end more than their operation."""
