"""The Postgres and the Redis of a test run.

One of each serves the whole run, all xdist processes included; each test gets a database of its
own, copied from a migrated template, and a key prefix of its own. ORBIT_TEST_DATABASE_URL and
ORBIT_TEST_REDIS_URL name other servers to use instead of the embedded ones.
"""

import asyncio
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from devcluster.homes import erase
from devcluster.postgres import EmbeddedPostgres
from devcluster.valkey import EmbeddedValkey
from store.migrate import migrate

# A killed server loses nothing without fsync; only a machine that loses power would.
POSTGRES_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "400",
}


@dataclass(frozen=True, slots=True)
class Stores:
    """Where the servers of this run are. Plain text, so that xdist can hand it on."""

    admin_url: str
    template: str
    redis_url: str

    def database_url(self, database: str) -> str:
        return urlunsplit(urlsplit(self.admin_url)._replace(path=f"/{database}"))

    @asynccontextmanager
    async def database(self) -> AsyncIterator[str]:
        """A fresh migrated database; gone afterwards, whoever is still connected."""
        name = f"test_{secrets.token_hex(8)}"
        await self.execute(f"CREATE DATABASE {name} TEMPLATE {self.template}")
        try:
            yield self.database_url(name)
        finally:
            await self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def execute(self, statement: str) -> None:
        """Run one statement as the owner of the server."""
        connection = await asyncpg.connect(self.admin_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()


async def _make_template(stores: Stores) -> None:
    await stores.execute(f"CREATE DATABASE {stores.template}")
    await migrate(stores.database_url(stores.template))


@contextmanager
def running_stores() -> Iterator[Stores]:
    """Start what is not named by the environment, and make the template."""
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="orbit-tests-"))
        folder.chmod(0o711)  # the account that Postgres runs as must get through
        stack.callback(erase, folder)
        admin_url = os.environ.get("ORBIT_TEST_DATABASE_URL")
        if not admin_url:
            postgres = EmbeddedPostgres(folder / "postgres", settings=POSTGRES_SETTINGS)
            admin_url = stack.enter_context(postgres).url()
        redis_url = os.environ.get("ORBIT_TEST_REDIS_URL")
        if not redis_url:
            redis_url = stack.enter_context(EmbeddedValkey(folder / "valkey")).url()
        stores = Stores(admin_url, f"template_{secrets.token_hex(8)}", redis_url)
        asyncio.run(_make_template(stores))
        try:
            yield stores
        finally:
            asyncio.run(stores.execute(f"DROP DATABASE {stores.template} WITH (FORCE)"))
