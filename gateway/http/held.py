"""Renewals and reports of an instance whose socket is bad (R-151, R-154, OP-21).

Where: between the HTTP API and the lanes of attempt commands, which they share with the frames of
the sockets: same batches, same pool, same order per attempt, same receipts. What proves here that
an attempt is the caller's is the lease's secret, before any database work, and the instance's, in
the transaction that acts; sessions play no part. An item that no answer came for in time is
`unavailable` and may be sent again with its message id, this way or the other.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request

from gateway import limits
from gateway.commands import Commands
from gateway.credentials import Grant, Scope
from gateway.http.answers import Answer, ErrorPart, error_part, http_status
from gateway.http.auth import Gate
from gateway.http.requests import read_json_body
from gateway.lanes import Lane, Refused
from gateway.store_calls import StoreCalls
from gateway.worker.answers import command_result
from gateway.worker.dialect import Operation
from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.bodies import BodyError, finish_hash
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.held import (
    FinishItem,
    RenewItem,
    decode_finish_item,
    decode_held,
    decode_renew_item,
)
from store import queries
from store.commands import (
    NO_SESSION,
    AttemptCommand,
    CommandOutcome,
    FinishCommand,
    InstanceProof,
)

Command = AttemptCommand | FinishCommand
_ITEMS_A_TURN: Final = 32
"""Results read before other work of the loop gets its turn: each may be a quarter of a MiB."""


class HeldResource:
    """The handlers under `/v1/worker/attempts`."""

    def __init__(self, gate: Gate, commands: Commands, calls: StoreCalls, ring: KeyRing) -> None:
        self._gate = gate
        self._commands = commands
        self._calls = calls
        self._ring = ring

    async def renew(self, request: Request) -> Answer:
        """Renew leases that an instance holds, past its socket."""
        grant = await self._gate.require(request, Scope.WORK)
        body = decode_held(await read_json_body(request, wire.HTTP_BODY_BYTES_MAX))
        proof = _proof_of(body.instance_id, body.instance_secret)
        gathered = _Gathered("renew", self._commands.attempts[Operation.RENEW])
        for raw in body.items:
            try:
                item = decode_renew_item(raw)
            except BodyError as error:
                gathered.refuse(error.code, error.reason, error.field)
                continue
            if self._proves(item):
                gathered.ask(_renewal(grant, proof, item))
            else:
                gathered.refuse(ErrorCode.ATTEMPT_NOT_FOUND)
        return await self._answer(grant, proof, gathered)

    async def finish(self, request: Request) -> Answer:
        """Report the ends of attempts that an instance holds, past its socket."""
        grant = await self._gate.require(request, Scope.WORK)
        body = decode_held(await read_json_body(request, wire.BATCH_BODY_BYTES_MAX))
        proof = _proof_of(body.instance_id, body.instance_secret)
        gathered = _Gathered("finish", self._commands.attempts[Operation.FINISH])
        for index, raw in enumerate(body.items, start=1):
            if index % _ITEMS_A_TURN == 0:
                await asyncio.sleep(0)
            try:
                item = decode_finish_item(raw)
            except BodyError as error:
                gathered.refuse(error.code, error.reason, error.field)
                continue
            if self._proves(item):
                gathered.ask(_report(grant, proof, item))
            else:
                gathered.refuse(ErrorCode.ATTEMPT_NOT_FOUND)
        return await self._answer(grant, proof, gathered)

    def _proves(self, item: RenewItem) -> bool:
        return self._ring.verify(item.attempt_id, item.epoch, item.lease_secret)

    async def _answer(self, grant: Grant, proof: InstanceProof, gathered: "_Gathered") -> Answer:
        if gathered.commands and not await self._reaches(grant, proof):
            gathered.refuse_all(ErrorCode.ATTEMPT_NOT_FOUND)
        return Answer({"results": await gathered.results()})

    async def _reaches(self, grant: Grant, proof: InstanceProof) -> bool:
        """Whether the credential may work on the queue of the instance, as for a hello (R-116)."""
        if grant.queue_ids is None:
            return True
        queue_id = await self._calls.read(
            queries.find_queue_of_instance, grant.namespace_id, proof.instance_id
        )
        return queue_id is not None and grant.allows_queue(queue_id)


class _Gathered:
    """The items of one request: refused ones, and commands with their answers, in order."""

    def __init__(self, word: Any, lane: Lane[Any, CommandOutcome]) -> None:
        self.commands: dict[int, Command] = {}
        self._word = word
        self._lane = lane
        self._found: list[dict[str, Any] | None] = []
        self._missing = 0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ask(self, command: Command) -> None:
        self.commands[len(self._found)] = command
        self._found.append(None)

    def refuse(self, code: ErrorCode, message: str | None = None, field: str = "") -> None:
        part = error_part(code, message, field)
        self._found.append(_refused(len(self._found), code, part))

    def refuse_all(self, code: ErrorCode) -> None:
        """Refuse what would be asked."""
        for index in self.commands:
            self._found[index] = _refused(index, code, error_part(code))
        self.commands.clear()

    async def results(self) -> list[dict[str, Any]]:
        """Ask, wait for the answers, but not for long."""
        for index, command in self.commands.items():
            self._missing += 1
            if not self._lane.offer(command, self._reply(index)):
                self._take(index, Refused(ErrorCode.RATE_LIMITED))
        if self._missing:
            try:
                async with asyncio.timeout(limits.SUBMIT_WAIT_S):
                    await self._done
            except TimeoutError:
                pass
        late = ErrorCode.UNAVAILABLE
        return [
            _refused(index, late, error_part(late)) if found is None else found
            for index, found in enumerate(self._found)
        ]

    def _reply(self, index: int) -> Callable[[Command, CommandOutcome | Refused], None]:
        return lambda _command, outcome: self._take(index, outcome)

    def _take(self, index: int, outcome: CommandOutcome | Refused) -> None:
        if isinstance(outcome, Refused):
            self._found[index] = _refused(index, outcome.code, error_part(outcome.code))
        elif outcome.code != "ok":
            code = ErrorCode(outcome.code)
            self._found[index] = _refused(index, code, error_part(code))
        else:
            result = msgspec.structs.asdict(command_result(self._word, outcome))
            self._found[index] = {"index": index, "status": 200, **result}
        self._missing -= 1
        if not self._missing and not self._done.done():
            self._done.set_result(None)


def _refused(index: int, code: ErrorCode, part: ErrorPart) -> dict[str, Any]:
    return {"index": index, "status": http_status(code), "error": part}


def _proof_of(instance_id: str, instance_secret: str) -> InstanceProof:
    return InstanceProof(instance_id, hashlib.sha256(instance_secret.encode()).digest())


def _renewal(grant: Grant, proof: InstanceProof, item: RenewItem) -> AttemptCommand:
    return AttemptCommand(
        grant.namespace_id,
        NO_SESSION,
        0,
        item.task_id,
        item.attempt_id,
        int(item.epoch),
        item.message_id,
        proof,
    )


def _report(grant: Grant, proof: InstanceProof, item: FinishItem) -> FinishCommand:
    result = bytes(item.result)
    error_code = item.error_code or ""
    return FinishCommand(
        grant.namespace_id,
        NO_SESSION,
        item.task_id,
        item.attempt_id,
        int(item.epoch),
        item.message_id,
        finish_hash(item.outcome, error_code, result),
        item.outcome,
        error_code or None,
        result,
        proof,
    )
