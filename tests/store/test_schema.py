"""The schema in the repository is the one that the migrations make."""

import asyncpg
import pytest

from devcluster.schema import MAJOR, SCHEMA_FILE, dump_major, dump_schema


async def test_the_schema_file_is_what_the_migrations_make(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    server_major = connection.get_server_version().major
    await connection.close()
    if {dump_major(), server_major} != {MAJOR}:
        pytest.skip(f"only Postgres {MAJOR} words it the same way")
    assert dump_schema(database_url) == SCHEMA_FILE.read_text(), "run `make schema`"
