"""Renewals and reports of an instance whose socket is bad (R-151, R-154, OP-21).

Where: between the HTTP API and the lanes of attempt commands, which they share with the frames of
the sockets: same batches, same pool, same order per attempt, same receipts. What proves here that
an attempt is the caller's is the lease's secret, before any database work, and the instance's, in
the transaction that acts; sessions play no part. An item that no answer came for in time is
`unavailable` and may be sent again with its message id, this way or the other.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import Request

from gateway import limits
from gateway.commands import Commands
from gateway.credentials import Grant, Scope
from gateway.http.answers import Answer
from gateway.http.auth import Gate
from gateway.http.held_items import Command, HeldItems
from gateway.http.requests import read_json_body
from gateway.lanes import Refused
from gateway.store_calls import StoreCalls
from gateway.worker.dialect import Operation
from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol import limits as wire
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.held import decode_held
from store import queries
from store.commands import CommandOutcome, InstanceProof

_ITEMS_A_TURN: Final = 32
"""Results read before other work of the loop gets its turn: each may be a quarter of a MiB."""


class HeldResource:
    """The handlers under `/v1/worker/attempts`."""

    def __init__(self, gate: Gate, commands: Commands, calls: StoreCalls, ring: KeyRing) -> None:
        self._gate = gate
        self._commands = commands
        self._calls = calls
        self._ring = ring
        self._open: dict[tuple[Operation, str], int] = {}
        """Commands given to the lanes and not yet answered, by kind and attempt."""

    async def renew(self, request: Request) -> Answer:
        """Renew leases that an instance holds, past its socket."""
        return await self._serve(request, Operation.RENEW, wire.HTTP_BODY_BYTES_MAX)

    async def finish(self, request: Request) -> Answer:
        """Report the ends of attempts that an instance holds, past its socket."""
        return await self._serve(request, Operation.FINISH, wire.BATCH_BODY_BYTES_MAX)

    async def _serve(self, request: Request, operation: Operation, bytes_max: int) -> Answer:
        grant = await self._gate.require(request, Scope.WORK)
        body = decode_held(await read_json_body(request, bytes_max))
        items = HeldItems(operation, grant.namespace_id, body, self._ring)
        for index, raw in enumerate(body.items, start=1):
            if index % _ITEMS_A_TURN == 0:
                await asyncio.sleep(0)
            items.read(raw)
        for attempt_id in items.unproven:
            self._commands.unproven.note(body.instance_id, attempt_id)
        if items.commands and not await self._reaches(grant, items.proof):
            items.refuse_all(ErrorCode.ATTEMPT_NOT_FOUND)
        await self._ask(operation, items)
        return Answer({"results": items.results()})

    async def _reaches(self, grant: Grant, proof: InstanceProof) -> bool:
        """Whether the credential may work on the queue of the instance, as for a hello (R-116)."""
        if grant.queue_ids is None:
            return True
        queue_id = await self._calls.read(
            queries.find_queue_of_instance, grant.namespace_id, proof.instance_id
        )
        return queue_id is not None and grant.allows_queue(queue_id)

    async def _ask(self, operation: Operation, items: HeldItems) -> None:
        """Ask, and wait for the answers, but not for long."""
        lane = self._commands.attempts[operation]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply_to(index: int) -> Callable[[Command, CommandOutcome | Refused], None]:
            def reply(command: Command, outcome: CommandOutcome | Refused) -> None:
                self._leave(operation, command.attempt_id)
                items.answered(index, outcome)
                if not items.missing and not done.done():
                    done.set_result(None)

            return reply

        for index, command in items.commands.items():
            if not self._enter(operation, command.attempt_id):
                items.answered(index, Refused(ErrorCode.RATE_LIMITED))
            elif not lane.offer(command, reply_to(index)):
                self._leave(operation, command.attempt_id)
                items.answered(index, Refused(ErrorCode.RATE_LIMITED))
        if items.missing:
            try:
                async with asyncio.timeout(limits.SUBMIT_WAIT_S):
                    await done
            except TimeoutError:
                pass

    def _enter(self, operation: Operation, attempt_id: str) -> bool:
        """Count one more command of this attempt, unless it has too many."""
        count = self._open.get((operation, attempt_id), 0)
        if count >= limits.HELD_COMMANDS_MAX:
            return False
        self._open[operation, attempt_id] = count + 1
        return True

    def _leave(self, operation: Operation, attempt_id: str) -> None:
        count = self._open.pop((operation, attempt_id)) - 1
        if count:
            self._open[operation, attempt_id] = count
