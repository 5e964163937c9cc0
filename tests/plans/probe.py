"""What a statement reads: rows by table and pages, as Postgres itself counts them.

The statement runs under EXPLAIN ANALYZE in a transaction that is rolled back; nested statements of
functions are counted with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from tests.plans.large import BIG


@dataclass(frozen=True, slots=True)
class Reads:
    """Of one statement: rows it scanned in sequence and by index (tables only), pages, answers."""

    in_sequence: Mapping[str, int]
    by_index: Mapping[str, int]
    pages: int
    answers: int


_READS = """
SELECT regexp_replace(relname, '_(p[0-9]+|default)$', '') AS name,
       sum(seq_tup_read)::bigint, sum(idx_tup_fetch)::bigint
FROM pg_stat_xact_user_tables GROUP BY 1
"""


async def reads_of(connection: "asyncpg.Connection[Any]", statement: str, *arguments: Any) -> Reads:
    """Run a statement, forget what it did, and tell what it read."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        before = {row[0]: row for row in await connection.fetch(_READS)}
        [[plan]] = await connection.fetch(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING off, FORMAT json) {statement}", *arguments
        )
        after = {row[0]: row for row in await connection.fetch(_READS)}
    finally:
        await transaction.rollback()

    def rows(column: int) -> dict[str, int]:
        found = {name: after[name][column] - before[name][column] for name in BIG}
        return {name: count for name, count in found.items() if count}

    top = json.loads(plan)[0]["Plan"]
    pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
    return Reads(rows(1), rows(2), pages, int(top["Actual Rows"]))
