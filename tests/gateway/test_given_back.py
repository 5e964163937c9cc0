"""What goes back, is tried again or is still held is known at once, not at the end of a lease."""

import asyncio
import dataclasses
import json

import httpx
from click.testing import CliRunner

from store import cli
from store.bus import Bus, StreamReader
from store.messages import Levels, Wake
from store.pool import Pools
from tests.gateway.harness import App, Dispatcher, Gateway, submit, worker_on
from tests.waiting import wait_until

RETRY = {"max_attempts": 3, "max_delay_ms": 0, "attempt_timeout_ms": 60_000}


async def _waiting(pools: Pools) -> int:
    return int(await pools.background.fetchval("SELECT count(*) FROM ready"))


async def _from_now(bus: Bus, kind: str) -> StreamReader:
    """A reader that yields what is written from here on."""
    reader = bus.reader(kind)  # type: ignore[arg-type]
    await reader.read(1, 1)
    return reader


async def _woken(reader: StreamReader) -> set[int]:
    """The routes of the next wake."""
    for _ in range(10):
        for _, message in await reader.read(1000, 100):
            assert isinstance(message, Wake)
            return {route for _, route in message.routes}
    raise AssertionError("no wake came")


async def test_an_assignment_that_meets_a_drain_goes_back_at_once(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-15, OP-25: assigned and never written, with most of a minute left on the lease."""
    dispatcher = Dispatcher(pools, bus)
    wakes = await _from_now(bus, "wake")
    async with worker_on(gateway, app) as worker:
        await submit(http)
        await _woken(wakes)
        won = await dispatcher.claim(worker.session_id)
        assert await _waiting(pools) == 0
        drain = {"sequence": "1", "capacity": 4, "drain": True}
        assert (await worker.ask("worker.capacity", drain))["body"]["draining"] is True
        await bus.assign(won[0].node_id, won)
        assert len(await _woken(wakes)) == 1
        assert await _waiting(pools) == 1
        assert worker.assigned == []
    await wakes.close()


async def test_one_whose_stream_entry_was_lost_goes_back_by_the_twin(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-14, INV-15: the node asks Postgres, finds it unwritten, and may not write it any more."""
    async with worker_on(gateway, app) as worker:
        await submit(http)
        await Dispatcher(pools, bus).claim(worker.session_id)
        drain = {"sequence": "1", "capacity": 4, "drain": True}
        await worker.ask("worker.capacity", drain)
        await wait_until(lambda: _waiting(pools), lambda count: count == 1, 15)


async def test_what_was_started_does_not_go_back(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """A doubled stream entry after the drain takes nothing from the worker that runs it."""
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as worker:
        await submit(http)
        won = await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        await worker.ask("task.start", ref)
        drain = {"sequence": "1", "capacity": 4, "drain": True}
        await worker.ask("worker.capacity", drain)
        socket = gateway.node.sockets[worker.session_id]
        socket.give_back(won[0].attempt_id)  # as if the node had forgotten that it wrote it
        await gateway.node.commands.idle(5.0)
        assert await _waiting(pools) == 0
        renewed = await worker.ask("task.renew", ref)
        assert renewed["body"]["lease"]["active"] is True


async def test_a_failure_without_delay_wakes_its_route_after_the_commit(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-16: the next try is due at once, and nobody has to scan for it."""
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as worker:
        await submit(http, retry=RETRY | {"initial_delay_ms": 0})
        await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        await worker.ask("task.start", ref)
        wakes = await _from_now(bus, "wake")
        failed = {"ref": ref, "outcome": "FAILED", "error_code": "smtp.down", "result": {}}
        ack = await worker.ask("task.finish", failed)
        assert ack["body"]["receipt"]["task_state"] == "WAITING"
        routes = await _woken(wakes)
        assert routes == {await pools.background.fetchval("SELECT route_id FROM ready")}
    await wakes.close()


async def test_a_failure_with_a_delay_wakes_nobody(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as worker:
        await submit(http, retry=RETRY | {"initial_delay_ms": 60_000, "max_delay_ms": 60_000})
        await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        await worker.ask("task.start", ref)
        wakes = await _from_now(bus, "wake")
        failed = {"ref": ref, "outcome": "FAILED", "error_code": "smtp.down", "result": {}}
        await worker.ask("task.finish", failed)
        await gateway.node.commands.idle(5.0)
        assert gateway.node.commands.tried_again.answered == 1
        assert await wakes.read(200, 10) == []
    await wakes.close()


async def test_a_returning_instance_reports_its_level_less_what_it_still_runs(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """OP-14, INV-12: not resumed yet, counted all the same; resumed, counted once."""
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as worker:
        for _ in range(3):
            await submit(http)
        await dispatcher.dispatch(worker.session_id)
        refs = [(await worker.assignment()).ref for _ in range(3)]
        for ref in refs[:2]:
            await worker.ask("task.start", ref)
        known = {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}
    levels = await _from_now(bus, "capacity")
    async with worker_on(gateway, app, hello=False, **known) as back:
        await back.hello(capacity=4)
        assert await _level(levels, back.session_id) == 2
        resumed = await back.ask("worker.resume", refs[0])
        assert resumed["body"]["active"] is True
        assert gateway.node.sockets[back.session_id].session.free == 2
        done = {"ref": refs[0], "outcome": "SUCCEEDED", "result": 1}
        assert (await back.ask("task.finish", done))["type"] == "ack"
        assert gateway.node.sockets[back.session_id].session.free == 3
    await levels.close()


async def test_a_quota_outranks_what_a_worker_declares(
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    pools: Pools,
    bus: Bus,
    database_url: str,
) -> None:
    """OP-29, R-116, INV-12: at the hello and later, in Postgres and as a dispatcher hears it."""
    options = ("create", "shop", "--scope", "work", "--capacity-max", "2", "--json")
    arguments = [*options, "--queue", app.queue, "--database-url", database_url]
    made = json.loads((await asyncio.to_thread(CliRunner().invoke, cli.app, arguments)).stdout)
    assert (made["namespace_id"], made["capacity_max"]) == (app.namespace_id, 2)
    bounded = dataclasses.replace(app, credential=made["credential"])
    dispatcher = Dispatcher(pools, bus)
    levels = await _from_now(bus, "capacity")
    for _ in range(4):
        await submit(http)
    async with worker_on(gateway, bounded, hello=False) as worker:
        await worker.hello(capacity=8)
        assert await _level(levels, worker.session_id) == 2
        assert len(await dispatcher.dispatch(worker.session_id)) == 2
        ref = (await worker.assignment()).ref
        more = {"sequence": "1", "capacity": 6, "drain": False}
        assert (await worker.ask("worker.capacity", more))["type"] == "ack"
        assert await dispatcher.dispatch(worker.session_id) == []
        await worker.ask("task.start", ref)
        await worker.ask("task.finish", {"ref": ref, "outcome": "SUCCEEDED", "result": 1})
        assert gateway.node.sockets[worker.session_id].session.free == 1
        assert len(await dispatcher.dispatch(worker.session_id)) == 1
    await levels.close()


async def _level(reader: StreamReader, session_id: str) -> int:
    """The first level that is told of a session."""
    for _ in range(10):
        for _, message in await reader.read(1000, 100):
            assert isinstance(message, Levels)
            for level in message.levels:
                if level.session_id == session_id:
                    return level.free
    raise AssertionError("no level came")


async def test_what_a_superseded_session_had_not_started_wakes_its_route(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-16, OP-13: it is given back inside the hello of the newer session."""
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as first:
        await submit(http)
        await dispatcher.dispatch(first.session_id)
        await first.assignment()
        wakes = await _from_now(bus, "wake")
        same = {"instance_id": first.instance_id, "instance_secret": first.instance_secret}
        async with worker_on(gateway, app, **same):
            assert len(await _woken(wakes)) == 1
            assert await _waiting(pools) == 1
        await wakes.close()


async def test_a_lease_that_a_renewal_finds_over_wakes_its_route(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, bus: Bus
) -> None:
    """INV-16, OP-23: the renewal itself settles it, so no sweep will tell."""
    dispatcher = Dispatcher(pools, bus)
    async with worker_on(gateway, app) as worker:
        await submit(http)
        await dispatcher.dispatch(worker.session_id)
        assigned = await worker.assignment()
        wakes = await _from_now(bus, "wake")
        await pools.background.execute("UPDATE lease SET lease_until = now()")
        answer = await worker.ask("task.renew", assigned.ref)
        assert answer["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"
        assert len(await _woken(wakes)) == 1
        assert await _waiting(pools) == 1
    await wakes.close()
