"""`orbit migrate` and `orbit app`: what an operator does to the database itself.

Both read ORBIT_DATABASE_URL (or `--database-url`). A credential is printed once, when it is made;
the database keeps only its hash. A revocation is committed first; then the gateways are told.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import secrets
import sys
import time
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypeVar

import asyncpg
import click

from orbit_sdk.protocol.ids import new_id
from orbit_sdk.protocol.times import time_text
from store import pool, queries
from store.bus import Bus, BusUnavailable
from store.migrate import MigrationError, check_version
from store.migrate import migrate as apply_migrations

SCOPES = ("submit", "read", "cancel", "retry", "review", "work", "manage", "subscribe", "discover")
EXIT_FAILED = 1
EXIT_UNAVAILABLE = 3

T = TypeVar("T")

database_option = click.option(
    "--database-url",
    envvar="ORBIT_DATABASE_URL",
    required=True,
    help="Postgres of the cluster, postgresql://user:password@host:port/database.",
)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; turn what an operator can mend into one line and an exit code."""
    try:
        return asyncio.run(work)
    except MigrationError as error:
        click.echo(f"orbit: {error}", err=True)
        sys.exit(EXIT_FAILED)
    except asyncpg.InvalidPasswordError:
        click.echo("orbit: Postgres refused the user or password of ORBIT_DATABASE_URL", err=True)
        sys.exit(EXIT_FAILED)
    except (OSError, TimeoutError, asyncpg.PostgresConnectionError) as error:
        click.echo(
            f"orbit: Postgres cannot be reached ({type(error).__name__}):"
            " check ORBIT_DATABASE_URL and that the server runs",
            err=True,
        )
        sys.exit(EXIT_UNAVAILABLE)


@click.command()
@database_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def migrate(database_url: str, as_json: bool) -> None:
    """Bring the database to the version this build expects.

    Safe to run any number of times, and by several runners at once. Gateways and dispatchers only
    check the version; they never change it.
    """
    done = _run(apply_migrations(database_url))
    if as_json:
        click.echo(json.dumps({"applied": done}))
    elif done:
        click.echo(f"orbit: applied {len(done)}: {', '.join(done)}")
    else:
        click.echo("orbit: the database is up to date")


@click.group()
def app() -> None:
    """Applications and their credentials."""


@app.command("create")
@click.argument("name")
@click.option("--queue", "queues", multiple=True, default=("default",), show_default=True,
              help="A queue to make with it; may be given several times.")  # fmt: skip
@click.option("--scope", "scopes", multiple=True, type=click.Choice(SCOPES),
              default=("submit", "read", "cancel", "retry", "work"), show_default=True,
              help="What the credential may do; may be given several times.")  # fmt: skip
@click.option("--capacity-max", type=click.IntRange(1, 256),
              help="How many tasks at once a worker with the credential gets, whatever it declares."
                   "  [default: as it declares]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@database_option
def create_app(
    name: str,
    queues: tuple[str, ...],
    scopes: tuple[str, ...],
    capacity_max: int | None,
    as_json: bool,
    database_url: str,
) -> None:
    """Make an application NAME with queues, and a credential for it.

    If the application exists, only what is missing is added, and a further credential is made.

    Examples:

    \b
      orbit app create shop --queue mail --queue invoices
      orbit app create shop --scope work --capacity-max 4
    """
    if not 1 <= len(name) <= 128 or any(not 1 <= len(queue) <= 128 for queue in queues):
        raise click.UsageError("names have 1 to 128 characters")
    key_id, secret = secrets.token_hex(8), secrets.token_bytes(32)
    namespace_id = _run(_create(database_url, name, queues, (key_id, secret, scopes), capacity_max))
    text = base64.urlsafe_b64encode(secret).decode().rstrip("=")
    credential = f"orbit_{key_id}_{text}"
    if as_json:
        click.echo(
            json.dumps(
                {
                    "namespace_id": namespace_id,
                    "name": name,
                    "queues": list(queues),
                    "scopes": list(scopes),
                    "capacity_max": capacity_max,
                    "credential": credential,
                }
            )
        )
        return
    click.echo(f"application  {name} ({namespace_id})")
    click.echo(f"queues       {', '.join(queues)}")
    click.echo(f"scopes       {', '.join(scopes)}")
    if capacity_max is not None:
        click.echo(f"capacity     {capacity_max} a worker at the most")
    click.echo(f"credential   {credential}")
    click.echo("The credential is shown this once. Set it as ORBIT_CREDENTIAL.", err=True)


@app.command("revoke")
@click.argument("key_id")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--redis-url", envvar="ORBIT_REDIS_URL",
              help="Redis of the cluster, to tell the gateways at once.")  # fmt: skip
@click.option("--cluster", envvar="ORBIT_CLUSTER", default="orbit", show_default=True,
              help="The cluster's name in Redis.")  # fmt: skip
@database_option
def revoke(
    key_id: str, as_json: bool, redis_url: str | None, cluster: str, database_url: str
) -> None:
    """Revoke the credential KEY_ID, once and for all.

    KEY_ID is the part of a credential between its two underscores. Its sessions end and nothing
    more is accepted with it: at once where Redis brings the notice, within two seconds elsewhere.

    Example: orbit app revoke 0123456789abcdef
    """
    if re.fullmatch(r"[0-9a-f]{16}", key_id) is None:
        # Not repeated in the message: it may be a whole credential.
        raise click.UsageError("a key id has 16 characters, 0-9 and a-f")
    found = _run(_revoke(database_url, key_id))
    if found is None:
        click.echo(f"orbit: no credential has the key id {key_id}", err=True)
        sys.exit(EXIT_FAILED)
    name, revoked_at = found
    told = None if redis_url is None else asyncio.run(_tell_gateways(redis_url, cluster, key_id))
    if as_json:
        at = time_text(revoked_at)
        done = {"key_id": key_id, "name": name, "revoked_at": at, "gateways_told": told}
        click.echo(json.dumps(done))
    else:
        click.echo(f"orbit: {key_id} of application {name} is revoked")
    if told is None:
        click.echo("The gateways were not told by Redis; they see it within two seconds.", err=True)


async def _revoke(dsn: str, key_id: str) -> tuple[str, datetime] | None:
    connection = await pool.connect(dsn)
    try:
        reason = await check_version(connection)
        if reason is not None:
            raise MigrationError(reason)
        return await queries.revoke_credential(connection, key_id)
    finally:
        await connection.close()


async def _tell_gateways(redis_url: str, cluster: str, key_id: str) -> int | None:
    """How many gateways were told; None when Redis did not take it."""
    bus = Bus(redis_url, cluster)
    try:
        return await bus.revoke(key_id)
    except BusUnavailable:
        return None
    finally:
        await bus.close()


async def _create(
    dsn: str,
    name: str,
    queues: tuple[str, ...],
    credential: tuple[str, bytes, tuple[str, ...]],
    capacity_max: int | None,
) -> str:
    key_id, secret, scopes = credential
    connection = await pool.connect(dsn)
    try:
        reason = await check_version(connection)
        if reason is not None:
            raise MigrationError(reason)
        return await queries.create_app(
            connection,
            _fresh_id(),
            name,
            [(_fresh_id(), queue) for queue in queues],
            (key_id, hashlib.sha256(secret).digest(), scopes),
            capacity_max=capacity_max,
        )
    finally:
        await connection.close()


def _fresh_id() -> str:
    return new_id(time.time_ns() // 1_000_000, secrets.token_bytes(10))
