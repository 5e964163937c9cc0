"""The schema in the repository is the one that the migrations make."""

import pytest

from devcluster.schema import MAJOR, SCHEMA_FILE, dump_major, dump_schema


@pytest.mark.skipif(dump_major() != MAJOR, reason=f"only pg_dump {MAJOR} words it the same way")
async def test_the_schema_file_is_what_the_migrations_make(database_url: str) -> None:
    assert dump_schema(database_url) == SCHEMA_FILE.read_text(), "run `make schema`"
