"""Keeps history in order: partitions for the coming days, receipts that nobody can repeat any more.

Where: two slow loops of every dispatcher; several at once do no harm.
Promise: small batches, so that nothing else waits; partitions are made days ahead, so a day of
failures costs nothing.
"""

from typing import Any

import asyncpg

from dispatcher.assign import ACQUIRE_S, STORE_ERRORS
from dispatcher.limits import UPKEEP_BATCH_MAX
from runtime.loops import Loop
from store.dispatch import ensure_partitions, prune_receipts

PARTITIONS_EVERY_S = 3_600.0
PRUNE_EVERY_S = 30.0
RECEIPT_KEEP_MS = 600_000  # requirements, section 17: renew receipts are kept 10 minutes
PRUNE_BATCHES_MAX = 50


class Upkeep:
    """The slow duties."""

    def __init__(self, pool: "asyncpg.Pool[Any]") -> None:
        self._pool = pool

    def loops(self) -> list[Loop]:
        """Both loops, to be run by `run_loops`."""
        return [
            Loop("partitions", self.make_partitions, PARTITIONS_EVERY_S, expected=STORE_ERRORS),
            Loop("prune", self.prune, PRUNE_EVERY_S, expected=STORE_ERRORS),
        ]

    async def make_partitions(self) -> int:
        """Make the partitions of the coming days; returns how many were missing."""
        async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
            return await ensure_partitions(connection)

    async def prune(self) -> int:
        """Forget old receipts, batch by batch; returns how many."""
        pruned = 0
        for _ in range(PRUNE_BATCHES_MAX):
            async with self._pool.acquire(timeout=ACQUIRE_S) as connection:
                count = await prune_receipts(connection, RECEIPT_KEEP_MS, UPKEEP_BATCH_MAX)
            pruned += count
            if count < UPKEEP_BATCH_MAX:
                break
        return pruned
