"""Credentials for a run of the suite."""

import json

import asyncpg

from devcluster.cluster import LocalCluster

SCOPES = ("submit", "read", "work", "cancel", "retry", "review", "manage")


def app_with_every_scope(cluster: LocalCluster) -> str:
    """A further credential of the application `conformance`."""
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    made = cluster.run("app", "create", "conformance", "--queue", "default", *scopes, "--json")
    return str(json.loads(made)["credential"])


async def ends_in(cluster: LocalCluster, credential: str, seconds: float) -> None:
    """Give a credential so long to live, from now on."""
    connection = await asyncpg.connect(cluster.database_url)
    try:
        await connection.execute(
            "UPDATE credential SET expires_at = clock_timestamp() + $2 * interval '1 s'"
            " WHERE key_id = $1",
            credential.split("_")[1],
            seconds,
        )
    finally:
        await connection.close()
