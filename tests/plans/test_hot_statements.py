"""Hot statements read what they need and no more, on large tables, whatever the planner believes.

Statistics go stale: a table that was small when it was analysed, or when a connection planned its
functions, may be large now. A plan that was good then must still be good.
"""

from typing import Any

import asyncpg
import pytest

from store import pool
from tests.plans import large
from tests.plans.probe import reads_of
from tests.plans.statements import Call, hot_calls

pytestmark = [pytest.mark.plans, pytest.mark.timeout(120)]

PAGES_PER_ROW = 12
PAGES_SPARE = 6_000
"""What a batch may read in pages: index descents of its inserts and repeats, and some to spare."""


async def wasteful(
    connection: "asyncpg.Connection[Any]", calls: list[Call], state: str
) -> list[str]:
    """Run all statements and say which of them read too much."""
    found = []
    for call in calls:
        reads = await reads_of(connection, call.statement, *call.arguments)
        pages_max = PAGES_SPARE + PAGES_PER_ROW * call.rows_max
        if (
            reads.in_sequence
            or sum(reads.by_index.values()) > call.rows_max
            or reads.pages > pages_max
        ):
            found.append(f"{call.name} ({state}): {reads}, at most {call.rows_max} rows")
    return found


@pytest.mark.parametrize("days", [3, 40])
async def test_hot_statements_read_a_bounded_number_of_rows(database_url: str, days: int) -> None:
    builder = await pool.connect(database_url)
    await builder.execute("SET statement_timeout = 0; SET synchronous_commit = off")
    await large.quiet(builder)
    places = await large.make_places(builder, days)
    await large.fill(builder, places, days, large.SMALL)
    await builder.execute("ANALYZE")
    planned_early = await pool.connect(database_url)
    for call in await hot_calls(builder, places):
        await reads_of(planned_early, call.statement, *call.arguments)
    await large.empty(builder)
    await large.fill(builder, places, days, large.LARGE)
    calls = await hot_calls(builder, places)
    found = await wasteful(planned_early, calls, "planned when the tables were small")
    stale = await pool.connect(database_url)
    found += await wasteful(stale, calls, "statistics of small tables")
    await builder.execute("ANALYZE")
    fresh = await pool.connect(database_url)
    found += await wasteful(fresh, calls, "true statistics")
    assert not found, "\n".join(found)
    for connection in (builder, planned_early, stale, fresh):
        await connection.close()
