"""Full lives a second through the SQL functions alone: the limit that nothing above can pass.

One connection and two, batches of 100: submit, peek, claim, start, finish. The time that this
process spends on building its arguments is left out; encoding and decoding are in.
"""

from __future__ import annotations

import asyncio
import secrets
import time

from orbit_sdk.protocol.ids import IdSource
from store import commands, dispatch, pool, queries
from store.commands import Connection

BATCH = 100
LEASE_MS = 30_000
STEPS = ("submit", "peek", "claim", "start", "finish")


class _Lane:
    """One connection with a queue, a node and a session of its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ids = IdSource(lambda: time.time_ns() // 1_000_000, secrets.token_bytes)
        self.spent = dict.fromkeys(STEPS, 0.0)

    async def prepare(self) -> None:
        """Make the namespace, queue, route, node and session that the lives need."""
        fresh, connection = self._ids.next, self._connection
        key_id = secrets.token_hex(8)
        queue_id, self.session = fresh(), fresh()
        self.namespace = await queries.create_app(
            connection, fresh(), fresh(), [(queue_id, "bench")], (key_id, bytes(32), ())
        )
        queue = await queries.find_queue(connection, self.namespace, "bench")
        assert queue is not None
        self.queue = queue
        (self.route,) = await queries.intern_routes(connection, queue.id, [("bench", "1", "1")])
        node = fresh()
        await dispatch.beat_node(connection, node, "gateway", False)
        hello = commands.OpenSession(
            self.session, self.namespace, fresh(), bytes(32), queue.id, (self.route,), 256, node,
            86_400_000, key_id,
        )  # fmt: skip
        (opened,) = await commands.open_sessions(connection, [hello])
        assert opened.code == "ok", opened

    def _submission(self) -> commands.SubmitTask:
        return commands.SubmitTask(
            self.namespace, self._ids.next(), bytes(32), self._ids.next(), self.queue.id,
            self.route, self.queue.gate_id, b'{"n":1,"text":"the quick brown fox"}', 0, None,
            None, None, None, "IDEMPOTENT", 3, 1000, 60_000, 3_600_000,
        )  # fmt: skip

    async def lives(self, rounds: int) -> None:
        """Take `rounds` batches through their whole life."""
        fresh, connection = self._ids.next, self._connection
        for _ in range(rounds):
            items = [self._submission() for _ in range(BATCH)]
            at = time.perf_counter()
            accepted = await commands.submit_tasks(connection, items)
            at = self._lap("submit", at)
            found = await dispatch.peek_ready(connection, [(self.route, BATCH)])
            self._lap("peek", at)
            pairs = [dispatch.ClaimPair(task.task_id, self.session, fresh()) for task in found]
            at = time.perf_counter()
            won = await dispatch.claim_tasks(connection, pairs, LEASE_MS)
            self._lap("claim", at)
            starts = [
                commands.AttemptCommand(
                    self.namespace, self.session, self.queue.gate_id, grant.task_id,
                    grant.attempt_id, grant.epoch, fresh(),
                )
                for grant in won
            ]  # fmt: skip
            at = time.perf_counter()
            started = await commands.start_attempts(connection, starts)
            self._lap("start", at)
            ends = [
                commands.FinishCommand(
                    self.namespace, self.session, start.task_id, start.attempt_id, start.epoch,
                    fresh(), bytes(32), "SUCCEEDED", None, b'{"ok":true}',
                )
                for start in starts
            ]  # fmt: skip
            at = time.perf_counter()
            finished = await commands.finish_attempts(connection, ends)
            self._lap("finish", at)
            assert all(outcome.code == "created" for outcome in accepted)
            assert all(outcome.active for outcome in started)
            assert [outcome.settled for outcome in finished] == [True] * BATCH

    def _lap(self, step: str, since: float) -> float:
        now = time.perf_counter()
        self.spent[step] += now - since
        return now


async def measure(dsn: str, connections: int, rounds: int) -> dict[str, object]:
    """Lives a second over this many connections, each taking `rounds` batches."""
    lanes = []
    for _ in range(connections):
        lane = _Lane(await pool.connect(dsn))
        await lane.prepare()
        await lane.lives(5)
        lane.spent = dict.fromkeys(STEPS, 0.0)
        lanes.append(lane)
    begin = time.perf_counter()
    await asyncio.gather(*(lane.lives(rounds) for lane in lanes))
    wall = time.perf_counter() - begin
    lives = connections * rounds * BATCH
    spent = {step: sum(lane.spent[step] for lane in lanes) for step in STEPS}
    alone = sum(spent.values()) if connections == 1 else wall
    return {
        "connections": connections,
        "batch": BATCH,
        "lives": lives,
        "lives_per_s": lives / alone,
        "us_per_life": {step: value / lives * 1e6 for step, value in spent.items()},
    }
