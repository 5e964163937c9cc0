"""Operations over HTTP on real stores: permission, keys, bodies, answers, and who hears of them."""

import asyncio
from typing import Any

import httpx
import pytest

from store.bus import Bus
from store.messages import Cancelled, Notice
from store.pool import Pools
from tests.gateway.harness import (
    App,
    Dispatcher,
    Gateway,
    Worker,
    eventually,
    ids,
    make_app,
    running_gateway,
    submit,
    worker_on,
)
from tests.gateway.test_http import error_of

TASK = "0" * 32
RETRY = {"reason": "again", "expected_revision": "4"}
RESOLVE = {**RETRY, "outcome": "SUCCEEDED", "evidence": {"ticket": 7}}
GATE = {"reason": "incident", "expected_version": "1"}
OPERATIONS = [
    (f"/v1/tasks/{TASK}:cancel", "cancel", {"reason": "x"}),
    (f"/v1/tasks/{TASK}:retry", "retry", RETRY),
    (f"/v1/tasks/{TASK}:resolve", "review", RESOLVE),
    ("/v1/queues/mail:pause", "manage", GATE),
    ("/v1/queues/mail:resume", "manage", GATE),
]


async def do(
    http: httpx.AsyncClient, path: str, body: object, key: str | None = None
) -> httpx.Response:
    return await http.post(path, json=body, headers={"Idempotency-Key": key or ids.next()})


async def task_of(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    data: dict[str, Any] = (await http.get(f"/v1/tasks/{task_id}")).json()["data"]
    return data


async def submitted(http: httpx.AsyncClient, **changes: object) -> str:
    task_id: str = (await submit(http, **changes)).json()["data"]["id"]  # type: ignore[arg-type]
    return task_id


async def running(
    http: httpx.AsyncClient, worker: Worker, dispatcher: Dispatcher, **changes: object
) -> dict[str, str]:
    """A reference to an attempt that the worker was allowed to run."""
    await submitted(http, **changes)
    await dispatcher.dispatch(worker.session_id)
    ref = (await worker.assignment()).ref
    ack = await worker.ask("task.start", ref)
    assert ack["body"]["lease"]["active"], ack
    return ref


async def finish(worker: Worker, ref: dict[str, str], outcome: str, code: str) -> dict[str, Any]:
    body = {"ref": ref, "outcome": outcome, "error_code": code, "result": {"done": 1}}
    return await worker.ask("task.finish", body)


# --- permission, keys, bodies --------------------------------------------------------------------


@pytest.mark.parametrize(("path", "scope", "body"), OPERATIONS)
async def test_each_operation_has_a_scope_of_its_own(
    gateway: Gateway, pools: Pools, path: str, scope: str, body: object
) -> None:
    all_others = {"submit", "read", "cancel", "retry", "review", "work", "manage"} - {scope}
    limited = await make_app(pools, name="limited", scopes=tuple(all_others))
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        assert error_of(await do(client, path, body)) == (401, "unauthenticated")
        client.headers.update(limited.headers)
        assert error_of(await do(client, path, body)) == (403, "forbidden")


@pytest.mark.parametrize(("path", "scope", "body"), OPERATIONS)
async def test_each_operation_needs_a_key_and_its_own_body(
    http: httpx.AsyncClient, path: str, scope: str, body: dict[str, object]
) -> None:
    assert error_of(await http.post(path, json=body)) == (400, "key_required")
    assert error_of(await do(http, path, {})) == (400, "bad_request")
    assert error_of(await do(http, path, {**body, "force": True})) == (400, "bad_request")
    assert error_of(await do(http, path, {**body, "reason": " "})) == (422, "validation_failed")
    headers = {"Idempotency-Key": "k", "Content-Type": "text/plain"}
    answer = await http.post(path, content=b"{}", headers=headers)
    assert error_of(answer) == (415, "unsupported_media_type")
    large = {**body, "reason": "x" * 300_000}
    assert error_of(await do(http, path, large)) == (413, "payload_too_large")


async def test_what_is_not_there_is_not_found(
    gateway: Gateway, http: httpx.AsyncClient, pools: Pools
) -> None:
    for path, scope, body in OPERATIONS[:3]:
        assert error_of(await do(http, path, body)) == (404, "not_found"), scope
        assert error_of(await do(http, path.replace(TASK, "xyz"), body)) == (404, "not_found")
    assert error_of(await do(http, "/v1/queues/none:pause", GATE)) == (404, "queue_not_found")
    task_id = await submitted(http)
    other = await make_app(pools, name="other", queue="post")
    async with httpx.AsyncClient(base_url=gateway.url, headers=other.headers) as stranger:
        for path, scope, body in OPERATIONS[:3]:
            answer = await do(stranger, path.replace(TASK, task_id), body)
            assert error_of(answer) == (404, "not_found"), scope
        assert error_of(await do(stranger, "/v1/queues/mail:pause", GATE)) == (
            404,
            "queue_not_found",
        )


async def test_a_credential_bound_to_queues_operates_on_no_other(
    gateway: Gateway, app: App, pools: Pools, http: httpx.AsyncClient
) -> None:
    task_id = await submitted(http)
    await pools.background.execute(
        "UPDATE credential SET queue_ids = ARRAY[gen_random_uuid()] WHERE key_id = $1", app.key_id
    )
    gateway.node.credentials.forget()
    for path, scope, body in OPERATIONS:
        answer = await do(http, path.replace(TASK, task_id), body)
        assert error_of(answer) == (403, "forbidden"), scope
    assert error_of(await do(http, f"/v1/tasks/{TASK}:cancel", {"reason": "x"})) == (
        404,
        "not_found",
    )


async def test_openapi_says_what_operations_take(http: httpx.AsyncClient) -> None:
    page = (await http.get("/openapi.json")).json()
    bodies = {"/v1/tasks/{task_id}:cancel": "CancelBody", "/v1/queues/{queue}:pause": "GateBody"}
    for path, name in bodies.items():
        operation = page["paths"][path]["post"]
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith(f"/{name}")
        assert operation["parameters"][-1]["name"] == "Idempotency-Key"


# --- answers -------------------------------------------------------------------------------------


async def test_what_waits_is_cancelled_retried_and_cancelled_again(
    http: httpx.AsyncClient,
) -> None:
    task_id = await submitted(http)
    answer = await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "sold out"}, key="c")
    assert answer.status_code == 200
    changed = {"id": task_id, "state": "CANCELLED", "revision": "2", "deduplicated": False}
    assert answer.json()["data"] == changed
    shown = await task_of(http, task_id)
    assert (shown["state"], shown["cancel_reason"]) == ("CANCELLED", "sold out")
    assert shown["cancel_requested_at"] == shown["completed_at"]

    refused = await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "again"})
    assert error_of(refused) == (409, "state_conflict")
    assert refused.json()["error"]["details"] == {"state": "CANCELLED", "revision": "2"}
    stale = await do(http, f"/v1/tasks/{task_id}:retry", {**RETRY, "expected_revision": "1"})
    assert error_of(stale) == (409, "state_conflict")
    past = {**RETRY, "expected_revision": "2", "deadline_at": "2020-01-01T00:00:00Z"}
    assert error_of(await do(http, f"/v1/tasks/{task_id}:retry", past)) == (422, "deadline_order")

    retried = await do(http, f"/v1/tasks/{task_id}:retry", {**RETRY, "expected_revision": "2"})
    assert retried.status_code == 200
    assert retried.json()["data"]["state"] == "WAITING"
    repeat = await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "sold out"}, key="c")
    assert (repeat.status_code, repeat.json()["data"]) == (200, {**changed, "deduplicated": True})
    assert (await task_of(http, task_id))["state"] == "WAITING"
    other = await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "other"}, key="c")
    assert error_of(other) == (409, "idempotency_conflict")


async def test_what_runs_is_asked_to_stop_and_says_so(
    gateway: Gateway, http: httpx.AsyncClient, app: App, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app) as worker:
        ref = await running(http, worker, dispatcher)
        path = f"/v1/tasks/{ref['task_id']}"
        answer = await do(http, f"{path}:cancel", {"reason": "too late"}, key="c")
        assert (answer.status_code, answer.json()["data"]["state"]) == (202, "RUNNING")
        repeat = await do(http, f"{path}:cancel", {"reason": "too late"}, key="c")
        assert (repeat.status_code, repeat.json()["data"]["deduplicated"]) == (202, True)
        second = await do(http, f"{path}:cancel", {"reason": "mine"})
        assert second.status_code == 202
        shown = await task_of(http, ref["task_id"])
        assert (shown["state"], shown["cancel_reason"]) == ("RUNNING", "too late")

        renewed = await worker.ask("task.renew", ref)
        assert renewed["body"]["lease"] | {"lease_until": "", "server_time": ""} == {
            "active": False,
            "state": "RUNNING",
            "lease_until": "",
            "server_time": "",
        }
        done = await finish(worker, ref, "FAILED", "cancelled")
        assert done["body"]["receipt"]["task_state"] == "CANCELLED"
        (attempt,) = (await http.get(f"{path}/attempts")).json()["data"]["items"]
        marks = attempt["cancel"]
        assert (attempt["state"], marks["cause"], marks["forced_at"]) == (
            "CANCELLED",
            "caller",
            None,
        )
        assert marks["requested_at"] < marks["acknowledged_at"] == marks["finished_at"]


async def test_a_review_ends_as_a_person_says(
    gateway: Gateway, http: httpx.AsyncClient, app: App, dispatcher: Dispatcher, pools: Pools
) -> None:
    async with worker_on(gateway, app) as worker:
        ref = await running(http, worker, dispatcher)
        await finish(worker, ref, "UNKNOWN", "link.cut")
    path = f"/v1/tasks/{ref['task_id']}:resolve"
    answer = await do(http, path, RESOLVE, key="r")
    assert (answer.status_code, answer.json()["data"]["state"]) == (200, "SUCCEEDED")
    repeat = await do(http, path, RESOLVE, key="r")
    assert repeat.json()["data"] == answer.json()["data"] | {"deduplicated": True}
    shown = await task_of(http, ref["task_id"])
    assert (shown["state"], shown["resolve_reason"]) == ("SUCCEEDED", "again")
    assert shown["resolved_at"] == shown["completed_at"]
    kept = await pools.background.fetchrow(
        "SELECT actor, evidence FROM audit WHERE action = 'task.resolve'"
    )
    assert tuple(kept) == (app.key_id, b'{"ticket":7}')
    assert error_of(await do(http, path, {**RESOLVE, "expected_revision": "5"})) == (
        409,
        "state_conflict",
    )


async def test_a_queue_is_paused_and_resumed_at_the_version_that_was_seen(
    gateway: Gateway, http: httpx.AsyncClient, app: App, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app) as worker:
        await submitted(http)
        await dispatcher.dispatch(worker.session_id)
        ref = (await worker.assignment()).ref
        paused = await do(http, "/v1/queues/mail:pause", GATE, key="p")
        assert paused.json()["data"] == {
            "id": app.queue_id,
            "name": "mail",
            "paused": True,
            "control_version": "2",
            "deduplicated": False,
        }
        gated = await worker.ask("task.start", ref)
        assert gated["error"]["code"] == "execution_gated"
        shown = (await http.get("/v1/queues/mail")).json()["data"]
        assert (shown["paused"], shown["control_version"], shown["reason"]) == (
            True,
            "2",
            "incident",
        )
        stale = await do(http, "/v1/queues/mail:resume", GATE)
        assert error_of(stale) == (409, "state_conflict")
        assert stale.json()["error"]["details"] == {"control_version": "2"}
        by_id = f"/v1/queues/{app.queue_id}:resume"
        resumed = await do(http, by_id, {**GATE, "expected_version": "2"})
        assert resumed.json()["data"]["paused"] is False
        repeat = await do(http, "/v1/queues/mail:pause", GATE, key="p")
        assert repeat.json()["data"] == paused.json()["data"] | {"deduplicated": True}
        assert (await worker.ask("task.start", ref))["body"]["lease"]["active"]


async def test_one_key_sent_at_once_to_two_gateways_is_one_operation(
    gateway: Gateway,
    http: httpx.AsyncClient,
    app: App,
    database_url: str,
    redis_url: str,
    cluster_name: str,
) -> None:
    """R-090 to R-094: one does it, the others hear what it did."""
    async with (
        running_gateway(database_url, Bus(redis_url, cluster_name)) as second,
        httpx.AsyncClient(base_url=second.url, headers=app.headers) as other,
    ):
        for round_ in range(10):
            task_id = await submitted(http)
            answers = await asyncio.gather(
                *(
                    do(client, f"/v1/tasks/{task_id}:cancel", {"reason": "x"}, key=f"k{round_}")
                    for client in (http, other) * 5
                )
            )
            assert {answer.status_code for answer in answers} == {200}
            firsts = [a for a in answers if not a.json()["data"]["deduplicated"]]
            assert len(firsts) == 1


# --- who hears of it -----------------------------------------------------------------------------


async def test_a_retry_and_a_resume_wake_the_dispatchers(
    gateway: Gateway, http: httpx.AsyncClient, bus: Bus
) -> None:
    reader = bus.reader("wake")
    await reader.read(1, 10)
    task_id = await submitted(http)
    await eventually(lambda: not gateway.node.hints.wake_due.is_set())

    async def woken() -> int:
        return len(await reader.read(2_000, 100))

    assert await woken() == 1
    await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "x"})
    await do(http, f"/v1/tasks/{task_id}:retry", {**RETRY, "expected_revision": "2"})
    assert await woken() == 1
    await do(http, "/v1/queues/mail:pause", GATE)
    await do(http, "/v1/queues/mail:resume", {**GATE, "expected_version": "2"})
    assert await woken() == 1
    await reader.close()


async def test_the_node_that_holds_the_socket_hears_of_a_cancel_elsewhere(
    gateway: Gateway,
    http: httpx.AsyncClient,
    app: App,
    dispatcher: Dispatcher,
    bus: Bus,
    database_url: str,
    redis_url: str,
    cluster_name: str,
) -> None:
    async with (
        running_gateway(database_url, Bus(redis_url, cluster_name)) as second,
        worker_on(second, app) as worker,
    ):
        ref = await running(http, worker, dispatcher)
        heard: list[Notice] = []
        second.node.outlet.heed = heard.append  # type: ignore[method-assign]
        await do(http, f"/v1/tasks/{ref['task_id']}:cancel", {"reason": "x"})
        await eventually(lambda: bool(heard))
        assert heard == [Cancelled(worker.session_id, ref["attempt_id"], "caller")]


async def test_cancels_between_assignment_and_start_cost_no_slot(
    gateway: Gateway, http: httpx.AsyncClient, app: App, dispatcher: Dispatcher
) -> None:
    """B-22: 200 grants taken back before their start; the worker's slots are all free again."""
    async with worker_on(gateway, app, hello=False) as worker:
        await worker.hello(capacity=200)
        session = gateway.node.sockets[worker.session_id].session
        for turn in range(2):
            for _ in range(200):
                await submitted(http)
            await dispatcher.dispatch(worker.session_id, 200)
            refs = [(await worker.assignment()).ref for _ in range(200)]
            if turn:
                break
            assert session.free == 0
            answers = await asyncio.gather(
                *(do(http, f"/v1/tasks/{ref['task_id']}:cancel", {"reason": "x"}) for ref in refs)
            )
            assert {answer.status_code for answer in answers} == {200}
            for ref in refs:
                ack = await worker.ask("task.start", ref)
                assert ack["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"
                assert ack["body"]["lease"]["state"] == "CANCELLED"
            assert session.free == 200
        for ref in refs:
            assert (await worker.ask("task.start", ref))["body"]["lease"]["active"]


async def test_a_large_assignment_that_was_cancelled_is_not_handed_over(
    gateway: Gateway, http: httpx.AsyncClient, app: App, dispatcher: Dispatcher
) -> None:
    """Its payload stays behind and is read later: by then it is wanted no more."""
    async with worker_on(gateway, app) as worker:
        task_id = await submitted(http, payload={"text": "x" * 20_000})
        won = await dispatcher.claim(worker.session_id)
        assert won[0].task == b""
        session = gateway.node.sockets[worker.session_id].session
        outlet = gateway.node.outlet
        session.reserve(won[0].attempt_id, asyncio.get_running_loop().time())
        outlet._to_load[worker.session_id] = {won[0].attempt_id: None}
        assert session.held == 1
        answer = await do(http, f"/v1/tasks/{task_id}:cancel", {"reason": "x"})
        assert answer.status_code == 200
        await eventually(lambda: session.held == 0)
        assert outlet._to_load == {}
