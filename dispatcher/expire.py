"""Settles what ran out of time: leases nobody renewed, tasks that waited past a deadline.

Where: one loop of every dispatcher; two at once do no harm, since rows are skipped that another
works on and each is judged by its own newest end (INV-5, INV-6, INV-44).
Promise: a lease is settled within 1 s of its end and never before; tasks that wait again are woken,
and whoever holds an attempt past its deadline is told (OP-26).
"""

from typing import Any

import asyncpg

from dispatcher.assign import ACQUIRE_S, STORE_ERRORS
from dispatcher.limits import EXPIRE_BATCH_MAX
from dispatcher.metrics import DispatcherMetrics
from dispatcher.waking import Waking
from runtime import failpoints
from runtime.loops import Loop
from store.dispatch import expire_leases, expire_ready

BATCHES_TICK_MAX = 20  # then the loop shows a good tick, and goes on at its next one


class Expiry:
    """The sweep over leases and waiting tasks."""

    def __init__(
        self, pool: "asyncpg.Pool[Any]", waking: Waking, metrics: DispatcherMetrics
    ) -> None:
        self._pool = pool
        self._waking = waking
        self._metrics = metrics

    def loop(self, interval_s: float) -> Loop:
        """The loop, to be run by `run_loops`."""
        return Loop("expire", self.sweep, interval_s, backoff_max_s=1.0, expected=STORE_ERRORS)

    async def sweep(self) -> int:
        """Settle all that is over now, batch by batch; returns how many rows."""
        settled = 0
        async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
            for _ in range(BATCHES_TICK_MAX):
                if failpoints.armed:
                    await failpoints.reach("dispatcher.expire.before")
                leases = await expire_leases(connection, EXPIRE_BATCH_MAX)
                if failpoints.armed:
                    await failpoints.reach("dispatcher.expire.after")
                self._waking.wake({(row.queue_id, row.route_id) for row in leases if row.waiting})
                for row in leases:
                    if row.node_id and row.session_id:
                        self._waking.stop(row.node_id, row.session_id, row.attempt_id)
                tasks = await expire_ready(connection, EXPIRE_BATCH_MAX)
                self._metrics.expired_leases.inc(sum(row.node_id is None for row in leases))
                self._metrics.expired_tasks.inc(tasks)
                settled += len(leases) + tasks
                if max(len(leases), tasks) < EXPIRE_BATCH_MAX:
                    break
        return settled
