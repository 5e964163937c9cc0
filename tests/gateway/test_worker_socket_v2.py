"""`pulse.worker.v2` on real stores: batches judged item by item, and what is pushed (OP-06)."""

import httpx
import pytest
from prometheus_client import CollectorRegistry

from dispatcher.expire import Expiry
from dispatcher.metrics import DispatcherMetrics
from dispatcher.view import View
from dispatcher.waking import Waking
from store.bus import Bus, BusUnavailable
from store.pool import Pools
from tests.contract.oracle import Version
from tests.gateway.harness import (
    App,
    Assigned,
    Dispatcher,
    Gateway,
    Worker,
    ids,
    running_gateway,
    submit,
    worker_on,
)


async def given(
    worker: Worker, http: httpx.AsyncClient, dispatcher: Dispatcher, count: int
) -> list[Assigned]:
    """Assignments of so many fresh tasks."""
    for _ in range(count):
        await submit(http)
    await dispatcher.dispatch(worker.session_id)
    while len(worker.assigned) < count:
        frame = await worker.receive()
        assert frame["type"] == "task.assign", frame
        worker._keep(frame)
    assigned, worker.assigned = worker.assigned, []
    return assigned


def end(assigned: Assigned, outcome: str = "SUCCEEDED", **changes: object) -> dict[str, object]:
    return {"ref": assigned.ref, "outcome": outcome, "result": {"n": 1}} | changes


async def test_lives_in_batches(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app, version="2") as worker:
        for _ in range(4):
            await submit(http)
        await dispatcher.dispatch(worker.session_id)
        frame = await worker.receive()
        assert [body["task"]["state"] for body in frame["body"]["assignments"]] == ["LEASED"] * 4
        worker._keep(frame)
        refs = [assigned.ref for assigned in worker.assigned]
        started = await worker.ask_all("task.start", *refs)
        assert [result["receipt"]["operation"] for result in started] == ["start"] * 4
        assert all(result["lease"]["active"] for result in started)
        renewed = await worker.ask_all("task.renew", *refs)
        assert {result["lease"]["state"] for result in renewed} == {"RUNNING"}
        ends = await worker.ask_all(
            "task.finish",
            end(worker.assigned[0]),
            end(worker.assigned[1], "FAILED", error_code="fatal.broken"),
            end(worker.assigned[2], "UNKNOWN", error_code="link.cut"),
            end(worker.assigned[3]),
        )
        states = [result["receipt"]["task_state"] for result in ends]
        assert states == ["SUCCEEDED", "FAILED", "NEEDS_REVIEW", "SUCCEEDED"]
        tasks = [assigned.task["id"] for assigned in worker.assigned]
    for task_id, state in zip(tasks, states, strict=True):
        assert (await http.get(f"/v1/tasks/{task_id}")).json()["data"]["state"] == state


async def test_each_item_has_its_own_result(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """INV-21: what is wrong with one item touches no other, in any batch."""
    async with worker_on(gateway, app, version="2") as worker:
        first, second = await given(worker, http, dispatcher, 2)
        unproven = first.ref | {"lease_secret": "A" * 43}
        results = await worker.ask_all("task.start", first.ref, unproven, second.ref)
        codes = [result.get("error", {}).get("code") for result in results]
        assert codes == [None, "attempt_not_found", None]
        ends = await worker.ask_all(
            "task.finish",
            end(first),
            end(second, "CANCELLED", error_code="cancelled"),
            end(second),
        )
        assert ends[0]["receipt"]["task_state"] == "SUCCEEDED"
        assert ends[1]["error"]["code"] == "operation_conflict"  # nobody asked for a stop
        assert ends[2]["receipt"]["task_state"] == "SUCCEEDED"


async def test_repeats_are_recognised_by_the_items_id_in_whatever_frame(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """OP-21, INV-8: the frame's id names an answer, never an operation."""
    async with worker_on(gateway, app, version="2") as worker:
        first, second = await given(worker, http, dispatcher, 2)
        await worker.ask_all("task.start", first.ref, second.ref)
        renewal = {"message_id": ids.next(), **first.ref}
        (before,) = await worker.ask_all("task.renew", renewal)
        again, other = await worker.ask_all("task.renew", renewal, second.ref)
        assert again["receipt"] == before["receipt"]
        assert [again["deduplicated"], other["deduplicated"]] == [True, False]
        twice = await worker.ask_all("task.finish", end(first), end(first), end(second))
        assert twice[0]["receipt"] == twice[1]["receipt"]
        assert [result["deduplicated"] for result in twice] == [False, True, False]


async def test_attempts_are_resumed_in_one_frame_and_by_either_version(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """R-121, OP-14."""
    async with worker_on(gateway, app, version="2") as old:
        first, second = await given(old, http, dispatcher, 2)
        await old.ask_all("task.start", first.ref, second.ref)
    known = {"instance_id": old.instance_id, "instance_secret": old.instance_secret}
    async with worker_on(gateway, app, hello=False, version="1", **known) as plain:
        await plain.hello()
        lease = (await plain.ask("worker.resume", first.ref))["body"]
        assert (lease["active"], lease["state"]) == (True, "RUNNING")
    async with worker_on(gateway, app, hello=False, version="2", **known) as new:
        await new.hello()
        early = await new.ask_all("task.renew", first.ref)
        assert early[0]["error"]["code"] == "resume_required"
        leases = await new.ask_all("worker.resume", first.ref, second.ref)
        assert [lease["state"] for lease in leases] == ["RUNNING", "RUNNING"]
        ends = await new.ask_all("task.finish", end(first), end(second))
        assert {result["receipt"]["disposition"] for result in ends} == {"APPLIED"}


async def test_a_cancellation_reaches_the_worker_before_it_says_anything(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """R-127, R-128: pushed, and confirmed as CANCELLED, without any renewal in between."""
    async with worker_on(gateway, app, version="2") as worker:
        (assigned,) = await given(worker, http, dispatcher, 1)
        await worker.ask_all("task.start", assigned.ref)
        await cancel(http, assigned)
        frame = await worker.receive()
        assert frame["type"] == "task.cancel"
        assert frame["body"] == {
            "attempt_id": assigned.ref["attempt_id"],
            "task_id": assigned.task["id"],
            "epoch": assigned.ref["epoch"],
            "reason": "caller",
        }
        (stopped,) = await worker.ask_all(
            "task.finish", end(assigned, "CANCELLED", error_code="cancelled")
        )
        assert stopped["receipt"]["task_state"] == "CANCELLED"
        assert stopped["receipt"]["attempt_state"] == "CANCELLED"
    marks = await marks_of(http, assigned)
    assert (marks["cause"], marks["forced_at"]) == ("caller", None)
    assert marks["requested_at"] < marks["acknowledged_at"] == marks["finished_at"]


async def test_a_push_alone_acknowledges_nothing(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """OP-68: it is a hint, which may have been lost; an answer that said inactive is none."""
    async with worker_on(gateway, app, version="2") as worker:
        first, second = await given(worker, http, dispatcher, 2)
        await worker.ask_all("task.start", first.ref, second.ref)
        for assigned in (first, second):
            await cancel(http, assigned)
            assert (await worker.receive())["type"] == "task.cancel"
        await worker.ask_all("task.renew", second.ref)
        assert (await marks_of(http, second))["acknowledged_at"] is None
        await worker.ask_all("task.finish", end(first), end(second))
    assert (await marks_of(http, first))["acknowledged_at"] is None
    marks = await marks_of(http, second)
    assert marks["acknowledged_at"] == marks["finished_at"]


async def marks_of(http: httpx.AsyncClient, assigned: Assigned) -> dict[str, str | None]:
    """How the stop of a task's only attempt went, as the API shows it."""
    answer = await http.get(f"/v1/tasks/{assigned.task['id']}/attempts")
    (attempt,) = answer.json()["data"]["items"]
    marks: dict[str, str | None] = attempt["cancel"]
    return marks


async def test_a_cancellation_through_another_gateway_is_pushed_too(
    http: httpx.AsyncClient,
    gateway: Gateway,
    app: App,
    dispatcher: Dispatcher,
    database_url: str,
    redis_url: str,
    cluster_name: str,
) -> None:
    bus = Bus(redis_url, cluster_name)
    async with (
        running_gateway(database_url, bus) as other,
        worker_on(other, app, version="2") as worker,
    ):
        (assigned,) = await given(worker, http, dispatcher, 1)
        await worker.ask_all("task.start", assigned.ref)
        await cancel(http, assigned)
        assert (await worker.receive())["type"] == "task.cancel"


async def past_its_deadline(pools: Pools, assigned: Assigned) -> None:
    """Let the task's deadline pass now, as no renewal could have helped it."""
    async with pools.background.acquire() as connection:
        await connection.execute(
            "UPDATE lease SET deadline_at = now(), lease_until = now(), attempt_deadline_at = now()"
            " WHERE attempt_id = $1",
            assigned.ref["attempt_id"],
        )


def sweeper(pools: Pools, bus: Bus) -> tuple[Expiry, Waking]:
    """The duties of a dispatcher that look after deadlines."""
    waking = Waking(View(ids.next(), lambda: None, 1), bus)
    return Expiry(pools.background, waking, DispatcherMetrics(CollectorRegistry())), waking


async def test_a_deadline_is_pushed_with_its_reason(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher, pools: Pools
) -> None:
    """OP-26: by the sweep that opens the window, over the stream of the node."""
    expiry, waking = sweeper(pools, dispatcher.bus)
    async with worker_on(gateway, app, version="2") as worker:
        (assigned,) = await given(worker, http, dispatcher, 1)
        await worker.ask_all("task.start", assigned.ref)
        await past_its_deadline(pools, assigned)
        assert await expiry.sweep() == 1
        assert await waking.tell() == 1
        frame = await worker.receive()
        assert (frame["type"], frame["body"]["reason"]) == ("task.cancel", "deadline")
        assert frame["body"]["attempt_id"] == assigned.ref["attempt_id"]
        (stopped,) = await worker.ask_all(
            "task.finish", end(assigned, "CANCELLED", error_code="cancelled")
        )
        assert stopped["receipt"]["disposition"] == "APPLIED"
        assert stopped["receipt"]["task_state"] == "FAILED"
    task = (await http.get(f"/v1/tasks/{assigned.task['id']}")).json()["data"]
    assert task["error_code"] == "deadline_exceeded"
    assert task["cancel_requested_at"] is None, "no caller asked for it"
    marks = await marks_of(http, assigned)
    assert (marks["cause"], marks["forced_at"]) == ("deadline", None)
    assert marks["requested_at"] < marks["acknowledged_at"] == marks["finished_at"]
    assert await waking.tell() == 0


async def test_a_cancel_that_finds_the_deadline_passed_pushes_that(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher, pools: Pools
) -> None:
    """The call itself opens the window (OP-23), so no sweep will tell of it."""
    async with worker_on(gateway, app, version="2") as worker:
        (assigned,) = await given(worker, http, dispatcher, 1)
        await worker.ask_all("task.start", assigned.ref)
        await past_its_deadline(pools, assigned)
        await cancel(http, assigned)
        assert (await worker.receive())["body"]["reason"] == "deadline"


@pytest.mark.parametrize("version", ["1", "2"])
async def test_without_redis_the_next_renewal_tells_of_the_deadline(
    http: httpx.AsyncClient,
    gateway: Gateway,
    app: App,
    dispatcher: Dispatcher,
    pools: Pools,
    version: Version,
) -> None:
    nowhere = Bus("redis://127.0.0.1:1/0", "nowhere")
    expiry, waking = sweeper(pools, nowhere)
    async with worker_on(gateway, app, version=version) as worker:
        (assigned,) = await given(worker, http, dispatcher, 1)
        if version == "1":
            await worker.ask("task.start", assigned.ref)
        else:
            await worker.ask_all("task.start", assigned.ref)
        await past_its_deadline(pools, assigned)
        assert await expiry.sweep() == 1
        with pytest.raises(BusUnavailable):
            await waking.tell()
        if version == "1":
            result = (await worker.ask("task.renew", assigned.ref))["body"]
        else:
            (result,) = await worker.ask_all("task.renew", assigned.ref)
        assert (result["lease"]["active"], result["lease"]["state"]) == (False, "RUNNING")
    await nowhere.close()


async def test_a_v1_worker_hears_of_a_cancellation_by_its_next_renewal(
    http: httpx.AsyncClient, gateway: Gateway, app: App, dispatcher: Dispatcher
) -> None:
    """OP-03: nothing is pushed to it."""
    async with worker_on(gateway, app) as worker:
        await submit(http)
        await dispatcher.dispatch(worker.session_id)
        assigned = await worker.assignment()
        await worker.ask("task.start", assigned.ref)
        await cancel(http, assigned)
        renewed = await worker.ask("task.renew", assigned.ref)
        assert renewed["body"]["lease"]["active"] is False


async def cancel(http: httpx.AsyncClient, assigned: Assigned) -> None:
    answer = await http.post(
        f"/v1/tasks/{assigned.task['id']}:cancel",
        json={"reason": "no longer wanted"},
        headers={"Idempotency-Key": ids.next()},
    )
    assert answer.status_code == 202, answer.text


async def test_a_node_that_drains_says_so_at_once_and_lets_what_runs_finish(
    database_url: str, bus: Bus, app: App, pools: Pools, redis_url: str, cluster_name: str
) -> None:
    """R-129, OP-04."""
    own_bus = Bus(redis_url, cluster_name)
    async with running_gateway(database_url, own_bus, grace_s=0.5) as gateway:
        async with (
            httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as http,
            worker_on(gateway, app, version="2") as worker,
        ):
            dispatcher = Dispatcher(pools, bus)
            (assigned,) = await given(worker, http, dispatcher, 1)
            await worker.ask_all("task.start", assigned.ref)
            gateway.server.should_exit = True
            frame = await worker.receive()
            assert (frame["type"], frame["body"]) == ("worker.drain", {"reason": "shutdown"})
            (done,) = await worker.ask_all("task.finish", end(assigned))
            assert done["receipt"]["task_state"] == "SUCCEEDED"
            assert (await worker.receive())["error"]["code"] == "draining"
            assert await worker.closed() == 1012
        await gateway.task
