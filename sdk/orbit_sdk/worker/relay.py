"""What goes past a bad socket: renewals of leases that run short, reports nobody has taken. Pure.

Beside `desk`, which holds the attempts; the shell posts the parcels made here over HTTP and brings
back what came of them. Message ids are those of the socket's own messages where there are any, so
an operation stays one whichever way it is answered first (OP-21). While the socket is well nothing
is relayed: a renewal is long confirmed before its lease runs short.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import msgspec
from msgspec import UNSET, Raw

from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.held import FinishItem, HeldBody, HeldResult, RenewItem
from orbit_sdk.protocol.limits import BATCH_BODY_BYTES_MAX, HELD_ITEMS_MAX, HTTP_BODY_BYTES_MAX
from orbit_sdk.worker.attempt import Held, Step
from orbit_sdk.worker.desk import Desk
from orbit_sdk.worker.dialect import Operation
from orbit_sdk.worker.lease import relay_due
from orbit_sdk.worker.limits import (
    OPERATION_BACKOFF,
    RELAY_LOOK_MAX_S,
    RELAY_LOOK_MIN_S,
    RELAY_LOOK_SHARE,
    RELAY_REPORT_AFTER_S,
    RELAY_TIMEOUT_S,
    RELAY_TIMEOUT_SHARE,
    SERVES_SHARE,
)

PATHS = {
    Operation.RENEW: "/v1/worker/attempts:renew",
    Operation.FINISH: "/v1/worker/attempts:finish",
}
_STEPS = {Operation.RENEW: Step.RUNNING, Operation.FINISH: Step.FINISHING}
_BYTES_MAX = {Operation.RENEW: HTTP_BODY_BYTES_MAX, Operation.FINISH: BATCH_BODY_BYTES_MAX}
_ROOM_BYTES = 4_096
# Nothing that is sent again can change these answers; any other refusal may pass.
_FINAL = frozenset({ErrorCode.ATTEMPT_NOT_FOUND.value, ErrorCode.OPERATION_CONFLICT.value})
# The item itself was not understood: the socket may still take it.
_UNFIT = frozenset({ErrorCode.BAD_REQUEST.value, ErrorCode.VALIDATION_FAILED.value})


def look_after_s(lease_s: float) -> float:
    """How long the shell waits before it looks again for what is to be posted."""
    return min(RELAY_LOOK_MAX_S, max(RELAY_LOOK_MIN_S, lease_s * RELAY_LOOK_SHARE))


def patience_s(lease_s: float) -> float:
    """How long a posted parcel waits for its answer."""
    return min(RELAY_TIMEOUT_S, lease_s * RELAY_TIMEOUT_SHARE)


@dataclass(frozen=True, slots=True)
class Parcel:
    """One request to post. `names` are attempt and message ids of its items, in order."""

    operation: Operation
    body: bytes
    names: tuple[tuple[str, str], ...]
    sent_at: float

    @property
    def path(self) -> str:
        return PATHS[self.operation]


class Relay:
    """Decides what is posted, and when again. One parcel of a kind is under way at a time."""

    def __init__(
        self,
        instance_id: str,
        instance_secret: str,
        desk: Desk,
        new_id: Callable[[], str],
        share: Callable[[], float],
    ) -> None:
        self._instance_id = instance_id
        self._instance_secret = instance_secret
        self._desk = desk
        self._new_id = new_id
        self._share = share
        self._renewals: dict[str, str] = {}  # attempt → message id, until it is answered
        self._again_at: dict[str, float] = {}  # attempt → its lease stays short; ask no sooner
        self._reports: dict[str, float] = {}  # message id → since when it has waited, socket down
        self._unfit: set[str] = set()
        self._under_way: set[Operation] = set()
        self._served_at: dict[Operation, float] = {}  # when the socket last answered one
        self._tries = 0
        self._rest_until = -inf

    def served(self, operation: Operation, now: float) -> None:
        """The socket has answered an operation of this kind, whatever attempt it was of."""
        self._served_at[operation] = now

    def parcels(self, connected: bool, now: float) -> list[Parcel]:
        """What is to be posted now; each is answered by `answered`, once."""
        self._forget_settled()
        if now < self._rest_until:
            return []
        due = [held for held in self._desk.attempts if self._is_due(held, connected, now)]
        found = []
        for operation, step in (
            (Operation.RENEW, Step.RUNNING),
            (Operation.FINISH, Step.FINISHING),
        ):
            of_kind = [held for held in due if held.step is step]
            if of_kind and operation not in self._under_way:
                self._under_way.add(operation)
                found.append(self._parcel(operation, of_kind, now))
        return found

    def answered(self, parcel: Parcel, results: list[HeldResult] | None, now: float) -> None:
        """What came of a parcel: one result an item, or None for no answer that can be read."""
        self._under_way.discard(parcel.operation)
        passing = results is None or len(results) != len(parcel.names)
        if results is not None and not passing:
            for (attempt_id, message_id), result in zip(parcel.names, results, strict=True):
                passing |= not self._answered(parcel, attempt_id, message_id, result, now)
        if passing:
            self._tries += 1
            self._rest_until = now + OPERATION_BACKOFF.delay_s(self._tries, self._share())
        else:
            self._tries = 0

    def _answered(
        self, parcel: Parcel, attempt_id: str, message_id: str, result: HeldResult, now: float
    ) -> bool:
        """Take one answer; False if the same is to be asked again."""
        code = result.error.code if result.error is not None else ""
        if code in _UNFIT and parcel.operation is Operation.FINISH:
            self._unfit.add(message_id)
        elif code in _FINAL or (result.receipt is not None and result.lease is not None):
            self._renewals.pop(attempt_id, None)
            held = self._desk.attempts.find(attempt_id)
            if held is not None:
                self._apply(parcel, held, message_id, result, code, now)
        else:
            return False
        return True

    def _apply(
        self,
        parcel: Parcel,
        held: Held,
        message_id: str,
        result: HeldResult,
        code: str,
        now: float,
    ) -> None:
        if held.step is Step.FINISHING and held.finish_id == message_id:
            self._desk.settle(held, result.receipt or code)
        elif held.step is Step.RUNNING and parcel.operation is Operation.RENEW:
            if result.lease is None:
                self._desk.lose(held, code)
            else:
                self._desk.renewed(held, result.lease, parcel.sent_at, now)
                self._rest(held, now)

    def _rest(self, held: Held, now: float) -> None:
        """A lease that is short even so ends with its attempt's time, which no renewal moves: it is
        asked for again when half of what is left has gone, and so on."""
        left_s = held.boundary - now
        if left_s < self._desk.lease_s / 2:
            self._again_at[held.ref.attempt_id] = now + left_s / 2
        else:
            self._again_at.pop(held.ref.attempt_id, None)

    def _is_due(self, held: Held, connected: bool, now: float) -> bool:
        short = self._is_short(held, connected, now)
        if held.step is Step.RUNNING:
            short &= now >= self._again_at.get(held.ref.attempt_id, -inf)
            return short and not held.lost and (held.untold or not held.cancelled)
        if held.step is not Step.FINISHING or held.finish_id is None:
            return False
        if held.finish_id in self._unfit:
            return False
        if connected:
            self._reports.pop(held.finish_id, None)
            return short and not held.lost
        since = self._reports.setdefault(held.finish_id, now)
        return short or now >= since + RELAY_REPORT_AFTER_S

    def _is_short(self, held: Held, connected: bool, now: float) -> bool:
        """Whether the lease runs short for want of an answer. A socket that answers others is not
        at fault: a second call beside the slow one would make the next renewal wait (B-04)."""
        lease_s = self._desk.lease_s
        if relay_due(held.boundary, lease_s, self._desk.pace, connected=connected) > now:
            return False
        kind = Operation.FINISH if held.step is Step.FINISHING else Operation.RENEW
        return not connected or now >= self._served_at.get(kind, -inf) + SERVES_SHARE * lease_s

    def _parcel(self, operation: Operation, due: list[Held], now: float) -> Parcel:
        names: list[tuple[str, str]] = []
        items: list[Raw] = []
        room = _BYTES_MAX[operation] - _ROOM_BYTES
        for held in due[:HELD_ITEMS_MAX]:
            item = self._item(operation, held)
            data = msgspec.json.encode(item)
            room -= len(data) + 1
            if room < 0:
                break
            names.append((held.ref.attempt_id, item.message_id))
            items.append(Raw(data))
        body = HeldBody(
            instance_id=self._instance_id, instance_secret=self._instance_secret, items=items
        )
        return Parcel(operation, msgspec.json.encode(body), tuple(names), now)

    def _item(self, operation: Operation, held: Held) -> RenewItem:
        ref = held.ref
        if operation is Operation.RENEW:
            message_id = held.renew_id or self._renewals.get(ref.attempt_id) or self._new_id()
            self._renewals[ref.attempt_id] = message_id
            return RenewItem(
                message_id=message_id,
                task_id=ref.task_id,
                attempt_id=ref.attempt_id,
                epoch=ref.epoch,
                lease_secret=ref.lease_secret,
            )
        assert held.finish_id is not None, "a report has a name from its start"
        assert held.report is not None, "a report is sent only for a known outcome"
        code = held.report.error_code
        return FinishItem(
            message_id=held.finish_id,
            task_id=ref.task_id,
            attempt_id=ref.attempt_id,
            epoch=ref.epoch,
            lease_secret=ref.lease_secret,
            outcome=held.report.outcome,
            result=Raw(held.report.result),
            error_code=UNSET if code is None else code,
        )

    def _forget_settled(self) -> None:
        for kept in (self._renewals, self._again_at):
            for attempt_id in [a for a in kept if self._desk.attempts.find(a) is None]:
                del kept[attempt_id]
        if self._reports or self._unfit:
            waiting = {held.finish_id for held in self._desk.attempts}
            self._unfit &= waiting
            for message_id in [m for m in self._reports if m not in waiting]:
                del self._reports[message_id]
