"""What the test run itself promises to its tests."""

import os

import asyncpg
import pytest

from tests.stores import Stores


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_a_migrated_database_of_its_own(database_url: str, turn: int) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        assert await connection.fetchval("SELECT to_regclass('task') IS NOT NULL")
        await connection.execute("CREATE TABLE left_behind (turn int)")
    finally:
        await connection.close()


async def test_a_database_goes_away_under_an_open_connection(stores: Stores) -> None:
    async with stores.database() as url:
        connection = await asyncpg.connect(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.execute("SELECT 1")
    connection.terminate()


def test_settings_of_the_developer_do_not_reach_tests() -> None:
    assert "ORBIT_DATABASE_URL" not in os.environ
