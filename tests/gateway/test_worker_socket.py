"""The worker socket on real stores: what a worker may do wrong, and what it gets for it."""

import asyncio
import json

import httpx
import pytest
from websockets.asyncio.client import connect

from orbit_sdk.protocol.limits import FRAME_BYTES_MAX
from runtime import failpoints
from store.bus import Bus
from store.messages import entry_order
from store.pool import Pools
from tests.gateway.harness import (
    LEASE_MS,
    RING,
    App,
    Dispatcher,
    Gateway,
    Worker,
    capability,
    eventually,
    ids,
    make_app,
    running_gateway,
    submit,
    worker_on,
)


async def test_hello_must_come_in_time(database_url: str, bus: Bus, app: App) -> None:
    """OP-07: 4408."""
    async with (
        running_gateway(database_url, bus, hello_timeout_s=0.1) as gateway,
        worker_on(gateway, app, hello=False) as worker,
    ):
        frame = await worker.receive()
        assert frame["error"]["code"] == "hello_timeout"
        assert await worker.closed() == 4408


async def test_a_command_before_hello_closes(gateway: Gateway, app: App) -> None:
    async with worker_on(gateway, app, hello=False) as worker:
        body = {"sequence": "1", "capacity": 1, "drain": False}
        frame = await worker.answer(
            await worker.send("worker.capacity", body, session_id=ids.next())
        )
        assert frame["error"]["code"] == "hello_required"
        assert "session_id" not in frame
        assert await worker.closed() == 1008


async def test_a_second_hello_is_refused_and_the_session_goes_on(
    gateway: Gateway, app: App
) -> None:
    async with worker_on(gateway, app) as worker:
        frame = await worker.hello()
        assert frame["error"]["code"] == "bad_frame"
        body = {"sequence": "5", "capacity": 2, "drain": False}
        ack = await worker.ask("worker.capacity", body)
        assert ack["body"]["session_id"] == worker.session_id


@pytest.mark.parametrize(
    ("data", "code"),
    [(b"\x00\x01", 1003), (" " * (FRAME_BYTES_MAX + 1), 1009)],
    ids=["binary", "oversize"],
)
async def test_transport_faults_close_with_their_code(
    gateway: Gateway, app: App, data: str | bytes, code: int
) -> None:
    async with worker_on(gateway, app) as worker:
        await worker.socket.send(data)
        assert await worker.closed() == code


async def test_text_that_is_not_utf8_closes_with_1007(gateway: Gateway, app: App) -> None:
    async with worker_on(gateway, app) as worker:
        await worker.socket.send(b'{"\xff"}', text=True)
        assert await worker.closed() == 1007


async def test_malformed_frames_are_answered_then_closed(gateway: Gateway, app: App) -> None:
    async with worker_on(gateway, app) as worker:
        for _ in range(8):
            message_id = ids.next()
            await worker.socket.send(json.dumps({"type": "task.cancel", "message_id": message_id}))
            frame = await worker.answer(message_id)
            assert frame["error"]["code"] == "bad_frame"
        await worker.socket.send("[" * 100_000)
        assert (await worker.receive())["error"]["code"] == "bad_frame"
        assert await worker.closed() == 1008


async def test_unknown_and_foreign_queues(gateway: Gateway, app: App, pools: Pools) -> None:
    other = await make_app(pools, name="other")
    for queue_id in (ids.next(), other.queue_id):
        async with worker_on(gateway, app, hello=False) as worker:
            frame = await worker.hello(queue_id=queue_id)
            assert frame["error"]["code"] == "queue_unavailable"
            assert await worker.closed() == 1008


async def test_an_instance_is_bound_to_its_secret_and_capabilities(
    gateway: Gateway, app: App
) -> None:
    """OP-11, OP-13."""
    async with worker_on(gateway, app) as first:
        pass
    same = {"instance_id": first.instance_id, "instance_secret": first.instance_secret}
    async with worker_on(gateway, app, hello=False, instance_id=first.instance_id) as worker:
        assert (await worker.hello())["error"]["code"] == "instance_conflict"
        assert await worker.closed() == 1008
    async with worker_on(gateway, app, hello=False, **same) as worker:
        frame = await worker.hello(capabilities=[capability("other")])
        assert frame["error"]["code"] == "instance_conflict"
    async with worker_on(gateway, app, hello=False, **same) as worker:
        frame = await worker.hello(capacity=9)
        assert int(frame["body"]["epoch"]) > int(first.welcome["epoch"])


async def test_the_newest_hello_wins(gateway: Gateway, app: App) -> None:
    """INV-19, OP-13: the older connection is told and closed."""
    async with (
        worker_on(gateway, app) as old,
        worker_on(gateway, app, hello=False, **_identity(old)) as new,
    ):
        assert (await new.hello())["type"] == "worker.welcome"
        frame = await old.receive()
        assert frame["error"]["code"] == "session_superseded"
        assert await old.closed() == 4409
        body = {"sequence": "1", "capacity": 1, "drain": False}
        assert (await new.ask("worker.capacity", body))["type"] == "ack"


async def test_the_newest_hello_wins_across_nodes(
    gateway: Gateway, app: App, database_url: str, redis_url: str, cluster_name: str
) -> None:
    bus = Bus(redis_url, cluster_name)
    async with (
        running_gateway(database_url, bus) as other,
        worker_on(gateway, app) as old,
        worker_on(other, app, hello=False, **_identity(old)) as new,
    ):
        await new.hello()
        assert (await old.receive())["error"]["code"] == "session_superseded"
        assert await old.closed() == 4409


async def test_a_lost_notice_that_it_was_superseded_has_a_twin(
    gateway: Gateway,
    app: App,
    database_url: str,
    redis_url: str,
    cluster_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OP-13, OP-07: what the store keeps is found by the old node itself, with the same code."""
    async with (
        running_gateway(database_url, Bus(redis_url, cluster_name)) as other,
        worker_on(gateway, app) as old,
        worker_on(other, app, hello=False, **_identity(old)) as new,
    ):
        monkeypatch.setattr(other.node.hints, "notify", lambda _node_id, _notice: None)
        await new.hello()
        assert (await old.receive())["error"]["code"] == "session_superseded"
        assert await old.closed() == 4409
        body = {"sequence": "1", "capacity": 1, "drain": False}
        assert (await new.ask("worker.capacity", body))["type"] == "ack"


async def test_a_hello_whose_commit_was_unknown_still_ends_the_older_session(
    gateway: Gateway, app: App
) -> None:
    """OP-13: sent again it is a repeat, whose answer no longer names the session it replaced."""
    async with (
        worker_on(gateway, app) as old,
        worker_on(gateway, app, hello=False, **_identity(old)) as new,
    ):
        failpoints.arm(failpoints.read_failpoints("gateway.open_sessions.after=drop@1", 1))
        try:
            assert (await new.hello())["type"] == "worker.welcome"
        finally:
            failpoints.arm([])
        assert (await old.receive())["error"]["code"] == "session_superseded"
        assert await old.closed() == 4409


async def test_a_stale_session_id_gets_its_own_error(gateway: Gateway, app: App) -> None:
    async with worker_on(gateway, app) as worker:
        body = {"sequence": "1", "capacity": 1, "drain": False}
        message = await worker.send("worker.capacity", body, session_id=ids.next())
        frame = await worker.answer(message)
        assert frame["error"]["code"] == "session_superseded"
        assert frame["session_id"] == worker.session_id


async def test_unknown_foreign_and_wrongly_proven_attempts_look_alike(
    gateway: Gateway, app: App, http: httpx.AsyncClient, pools: Pools, dispatcher: Dispatcher
) -> None:
    """OP-14, INV-21, B-12: one answer for all, and the socket stays open."""
    await submit(http)
    other = await make_app(pools, name="other")
    async with worker_on(gateway, app) as owner, worker_on(gateway, other) as worker:
        await dispatcher.dispatch(owner.session_id)
        foreign = (await owner.assignment()).ref
        unknown_id = ids.next()
        unknown = {
            "task_id": ids.next(),
            "attempt_id": unknown_id,
            "epoch": "1",
            "lease_secret": RING.derive(unknown_id, "1"),
        }
        unproven = foreign | {"lease_secret": "A" * 43}
        for ref in (foreign, unknown, unproven):
            for kind in ("worker.resume", "task.start", "task.renew"):
                frame = await worker.ask(kind, ref)
                assert frame["error"]["code"] == "attempt_not_found", (kind, frame)
        assert (await owner.ask("task.start", foreign))["body"]["lease"]["active"] is True


async def test_a_repeated_start_and_finish_return_the_first_receipt(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    """OP-21, INV-8."""
    await submit(http)
    async with worker_on(gateway, app) as worker:
        await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        first = await worker.ask("task.start", ref)
        again = await worker.ask("task.start", ref)
        assert again["body"]["receipt"] == first["body"]["receipt"]
        flags = [frame["body"]["deduplicated"] for frame in (first, again)]
        assert flags == [False, True]
        done = {"ref": ref, "outcome": "SUCCEEDED", "result": {"n": 1}}
        finished = await worker.ask("task.finish", done)
        repeated = await worker.ask("task.finish", done)
        assert repeated["body"]["receipt"] == finished["body"]["receipt"]
        assert repeated["body"]["deduplicated"] is True
        other = await worker.ask("task.finish", done | {"result": {"n": 2}})
        assert other["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"


async def test_pipelined_commands_of_one_attempt_are_judged_in_their_order(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    """Architecture section 5: a start and a finish of one attempt in flight together."""
    await submit(http)
    async with worker_on(gateway, app) as worker:
        await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        start = await worker.send("task.start", ref)
        renew = await worker.send("task.renew", ref)
        finish = await worker.send("task.finish", {"ref": ref, "outcome": "SUCCEEDED", "result": 1})
        frames = [await worker.receive() for _ in range(3)]
        assert [frame["reply_to"] for frame in frames] == [start, renew, finish]
        assert [frame["body"]["receipt"]["task_state"] for frame in frames] == [
            "RUNNING",
            "RUNNING",
            "SUCCEEDED",
        ]


async def test_a_lapsed_lease_is_over_whatever_the_sweeper_does(
    database_url: str, bus: Bus, app: App, pools: Pools
) -> None:
    """OP-22, OP-23: no sweeper runs here."""
    async with running_gateway(database_url, bus, lease_ms=1_000) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http:
            await submit(http)
        async with worker_on(gateway, app) as worker:
            await Dispatcher(pools, bus, lease_ms=1_000).dispatch(worker.session_id)
            ref = (await worker.assignment()).ref
            await asyncio.sleep(1.1)  # the lease itself is what must pass
            frame = await worker.ask("task.start", ref)
            assert frame["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"
            assert frame["body"]["lease"]["active"] is False
            assert frame["body"]["lease"]["state"] == "EXPIRED"


async def test_an_attempt_is_resumed_on_another_node(
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    dispatcher: Dispatcher,
    database_url: str,
    redis_url: str,
    cluster_name: str,
) -> None:
    """R-155, OP-14, INV-22: resume moves it, and only then may it go on."""
    await submit(http)
    bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, bus) as other:
        async with worker_on(gateway, app) as old:
            await dispatcher.dispatch(old.session_id)
            ref = (await old.assignment()).ref
            await old.ask("task.start", ref)
        async with worker_on(other, app, hello=False, **_identity(old)) as new:
            await new.hello()
            early = await new.ask("task.renew", ref)
            assert early["error"]["code"] == "resume_required"
            lease = (await new.ask("worker.resume", ref))["body"]
            assert (lease["active"], lease["state"]) == (True, "RUNNING")
            renewed = await new.ask("task.renew", ref)
            assert renewed["body"]["lease"]["active"] is True


async def test_what_was_assigned_and_not_started_goes_back_when_the_socket_closes(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    """B-23: offered to another session at once, not after the lease."""
    await submit(http)
    async with worker_on(gateway, app) as first:
        await dispatcher.dispatch(first.session_id)
        await first.assignment()
    await eventually(lambda: not gateway.node.sockets)
    async with worker_on(gateway, app) as second:
        for _ in range(100):
            if await dispatcher.dispatch(second.session_id):
                break
            await asyncio.sleep(0.01)
        again = await second.assignment()
        assert again.ref["epoch"] == "2"
        assert again.task["attempt_count"] == 1


async def test_a_large_payload_is_read_from_the_store_and_a_doubled_entry_sent_once(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher, bus: Bus
) -> None:
    payload = {"text": "x" * 200_000}
    await submit(http, payload=payload)
    async with worker_on(gateway, app) as worker:
        won = await dispatcher.dispatch(worker.session_id)
        assert won[0].task == b""
        await bus.assign(won[0].node_id, won)
        given = await worker.assignment()
        assert given.task["payload"] == payload
        await bus.assign(won[0].node_id, won)
        started = await worker.ask("task.start", given.ref)
        assert started["body"]["lease"]["active"] is True
        assert worker.assigned == []


async def test_after_a_drain_nothing_is_assigned(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher, bus: Bus
) -> None:
    """INV-15, B-10: whatever was already on its way."""
    await submit(http)
    async with worker_on(gateway, app) as worker:
        won = await dispatcher.claim(worker.session_id)
        drain = {"sequence": "1", "capacity": 4, "drain": True}
        ack = await worker.ask("worker.capacity", drain)
        assert ack["body"]["draining"] is True
        entry = await bus.assign(won[0].node_id, won)
        await eventually(lambda: entry_order(gateway.node.outlet.seen) >= entry_order(entry))
        later = await worker.ask(
            "worker.capacity", {"sequence": "2", "capacity": 4, "drain": False}
        )
        assert later["body"]["draining"] is True
        assert worker.assigned == []
    async with worker_on(gateway, app, hello=False, **_identity(worker)) as back:
        assert (await back.hello())["body"]["draining"] is True


async def test_a_revoked_credential_ends_its_sessions(
    gateway: Gateway, app: App, pools: Pools
) -> None:
    """OP-15."""
    async with worker_on(gateway, app) as worker:
        await pools.background.execute(
            "UPDATE credential SET revoked_at = clock_timestamp() WHERE key_id = $1", app.key_id
        )
        assert (await worker.receive())["error"]["code"] == "session_expired"
        assert await worker.closed() == 4410


async def test_a_session_ends_when_its_time_is_over(database_url: str, bus: Bus, app: App) -> None:
    """OP-15."""
    async with (
        running_gateway(database_url, bus, session_max_ms=300) as gateway,
        worker_on(gateway, app) as worker,
    ):
        assert (await worker.receive())["error"]["code"] == "session_expired"
        assert await worker.closed() == 4410


async def test_a_peer_that_vanishes_without_a_close_is_closed_in_the_store(
    gateway: Gateway, app: App, pools: Pools
) -> None:
    async with connect(
        gateway.ws_url,
        additional_headers=app.headers,
        subprotocols=["pulse.worker.v1"],  # type: ignore[list-item]
    ) as socket:
        worker = Worker(socket, app)
        await worker.hello()
        socket.transport.abort()
        await eventually(lambda: not gateway.node.connections)
    assert await gateway.node.commands.idle(5)
    closed = await pools.background.fetchval(
        "SELECT closed_at IS NOT NULL FROM session WHERE id = $1", worker.session_id
    )
    assert closed is True
    assert gateway.node.lease_ms == LEASE_MS


def _identity(worker: Worker) -> dict[str, str]:
    return {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}
