"""A row that somebody holds in the database, and those who connect meanwhile (INV-39)."""

import asyncio

from store.pool import Pools
from tests.gateway.harness import App, Gateway, eventually, worker_on


async def test_an_instance_that_is_held_keeps_no_other_from_connecting(
    gateway: Gateway, app: App, pools: Pools
) -> None:
    """INV-39: hellos have one call at a time, and this one waits for as long as the row is held."""
    lane = gateway.node.commands.open
    async with worker_on(gateway, app) as known:
        pass
    names = {"instance_id": known.instance_id, "instance_secret": known.instance_secret}
    async with pools.background.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "SELECT 1 FROM worker_instance WHERE id = $1 FOR UPDATE", known.instance_id
        )
        async with worker_on(gateway, app, hello=False, **names) as back:
            greeting = asyncio.create_task(back.hello())
            await eventually(lambda: lane.open == 1)
            for _ in range(2):
                async with worker_on(gateway, app):
                    assert not greeting.done()
            assert gateway.node.readiness().ready
            await transaction.rollback()
            assert (await greeting)["type"] == "worker.welcome"
