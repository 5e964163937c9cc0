"""Renewals and reports over HTTP: one operation whichever way it came, and of nobody else."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from gateway import limits
from gateway.hints import HasLevel
from gateway.worker.dialect import Operation
from store.bus import Bus
from store.pool import Pools
from tests.gateway.harness import (
    App,
    Assigned,
    Dispatcher,
    Gateway,
    Worker,
    eventually,
    ids,
    make_app,
    new_secret,
    running_gateway,
    submit,
    worker_on,
)

RENEW, FINISH = "/v1/worker/attempts:renew", "/v1/worker/attempts:finish"
DONE: dict[str, object] = {"outcome": "SUCCEEDED", "result": {"sent": True}}


def item(
    ref: dict[str, str], said: dict[str, object] | None = None, message_id: str = ""
) -> dict[str, object]:
    return {"message_id": message_id or ids.next(), **ref, **(said or {})}


async def ask(
    http: httpx.AsyncClient, path: str, worker: Worker, *items: object, **changes: str
) -> list[dict[str, Any]]:
    body = {
        "instance_id": worker.instance_id,
        "instance_secret": worker.instance_secret,
        "items": items,
    }
    answer = await http.post(path, json=body | changes)
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["data"]["results"]
    assert [result["index"] for result in results] == list(range(len(items)))
    return results


async def running(
    http: httpx.AsyncClient, dispatcher: Dispatcher, worker: Worker, count: int = 1
) -> list[dict[str, str]]:
    """That many attempts that the worker has started."""
    for _ in range(count):
        assert (await submit(http)).status_code == 201
    await dispatcher.dispatch(worker.session_id)
    given: list[Assigned] = [await worker.assignment() for _ in range(count)]
    for assigned in given:
        assert (await worker.ask("task.start", assigned.ref))["type"] == "ack"
    return [assigned.ref for assigned in given]


async def test_what_a_gone_socket_held_is_renewed_and_reported(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher, pools: Pools
) -> None:
    """R-154, INV-20: no session is open at all; the attempts are the instance's."""
    async with worker_on(gateway, app) as worker:
        refs = await running(http, dispatcher, worker, 3)
    renewed = await ask(http, RENEW, worker, *map(item, refs))
    assert [result["lease"]["active"] for result in renewed] == [True] * 3
    assert {result["receipt"]["operation"] for result in renewed} == {"renew"}
    calls = gateway.node.commands.attempts
    before = sum(lane.batches for lane in calls.values())
    reports = [item(ref, DONE) for ref in refs]
    ended = await ask(http, FINISH, worker, *reports)
    assert sum(lane.batches for lane in calls.values()) - before == 1  # one call for all
    assert {result["receipt"]["task_state"] for result in ended} == {"SUCCEEDED"}
    again = await ask(http, FINISH, worker, *reports)
    assert [result["receipt"] for result in again] == [result["receipt"] for result in ended]
    assert {result["deduplicated"] for result in again} == {True}
    assert await pools.background.fetchval("SELECT count(*) FROM lease") == 0


async def test_the_socket_that_comes_back_gets_the_identical_receipt(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app) as worker:
        (ref,) = await running(http, dispatcher, worker)
    message_id = ids.next()
    (first,) = await ask(http, FINISH, worker, item(ref, DONE, message_id))
    known = {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}
    async with worker_on(gateway, app, hello=False, **known) as back:
        await back.hello()
        await back.ask("worker.resume", ref)
        frame = {
            "protocol_version": "1",
            "type": "task.finish",
            "message_id": message_id,
            "session_id": back.session_id,
            "body": {"ref": ref, **DONE},
        }
        await back.socket.send(json.dumps(frame))
        ack = await back.answer(message_id)
    assert ack["body"]["receipt"] == first["receipt"]
    assert ack["body"]["deduplicated"] is True


async def test_a_superseded_instance_is_still_itself(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    """INV-19 binds sessions: what the instance holds, it holds through all of them."""
    async with worker_on(gateway, app) as worker:
        (ref,) = await running(http, dispatcher, worker)
        known = {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}
        async with worker_on(gateway, app, hello=False, **known) as newer:
            await newer.hello()
            (renewed,) = await ask(http, RENEW, worker, item(ref))
            assert renewed["lease"]["active"] is True
            # It moved nothing: the new session must still resume.
            refused = await newer.ask("task.renew", ref)
            assert refused["error"]["code"] == "resume_required"


@pytest.mark.parametrize("elsewhere", [False, True], ids=["the same node", "another node"])
async def test_a_report_past_the_socket_frees_the_slot_of_the_session(
    elsewhere: bool,
    monkeypatch: pytest.MonkeyPatch,
    gateway: Gateway,
    app: App,
    http: httpx.AsyncClient,
    dispatcher: Dispatcher,
    database_url: str,
    redis_url: str,
    cluster_name: str,
) -> None:
    """INV-16: the socket lives, and its lease would count for a minute more."""
    async with running_gateway(database_url, Bus(redis_url, cluster_name)) as other:
        home = other if elsewhere else gateway
        async with worker_on(home, app) as worker:
            ended, kept = await running(http, dispatcher, worker, 2)
            session = home.node.sockets[worker.session_id].session
            assert (session.held, session.free) == (2, 2)
            told: list[HasLevel] = []
            monkeypatch.setattr(home.node.hints, "level_changed", told.append)
            (done,) = await ask(http, FINISH, worker, item(ended, DONE))
            assert done["receipt"]["disposition"] == "APPLIED"
            await eventually(lambda: session.held == 1)
            assert session.holds(kept["attempt_id"])
            assert session.free == 3
            assert told == [home.node.sockets[worker.session_id]], "the dispatchers hear at once"
            assert (await worker.ask("task.renew", kept))["body"]["lease"]["active"] is True
            (late,) = await ask(http, FINISH, worker, item(kept, DONE), instance_id=ids.next())
            assert late["error"]["code"] == "attempt_not_found"
            assert session.held == 1, "what was refused frees nothing"


async def test_a_foreign_instance_finds_no_such_attempt(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher, pools: Pools
) -> None:
    """INV-3, INV-21: other instances, other secrets, other applications: one answer, no change."""
    async with worker_on(gateway, app) as worker, worker_on(gateway, app) as stranger:
        (ref,) = await running(http, dispatcher, worker)
        stolen = item(ref, DONE)
        wrong_secret = item(ref | {"lease_secret": new_secret()}, DONE)
        unknown = item(ref | {"attempt_id": ids.next()}, DONE)
        other = await make_app(pools, "other", "letters")
        results = [
            *await ask(http, FINISH, stranger, stolen),
            *await ask(http, FINISH, worker, stolen, instance_secret=new_secret()),
            *await ask(http, FINISH, worker, stolen, instance_id=ids.next()),
            *await ask(http, FINISH, worker, wrong_secret, unknown),
        ]
        async with httpx.AsyncClient(base_url=gateway.url, headers=other.headers) as foreign:
            results += await ask(foreign, FINISH, worker, stolen)
        assert {result["error"]["code"] for result in results} == {"attempt_not_found"}
        assert {result["status"] for result in results} == {404}
        assert (await worker.ask("task.renew", ref))["body"]["lease"]["active"] is True


async def test_one_bad_item_spoils_no_other(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app) as worker:
        refs = await running(http, dispatcher, worker, 2)
        results = await ask(
            http,
            FINISH,
            worker,
            item(refs[0], {"outcome": "FAILED", "result": {}}),
            item(refs[0], DONE | {"surplus": 1}),
            item(refs[1], DONE),
            {"message_id": "x"},
        )
        assert [result["status"] for result in results] == [422, 400, 200, 400]
        assert "error_code" in results[0]["error"]["message"]


async def test_two_items_of_one_attempt_are_judged_one_after_the_other(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher
) -> None:
    async with worker_on(gateway, app) as worker:
        (ref,) = await running(http, dispatcher, worker)
        first, second = await ask(
            http, FINISH, worker, item(ref, DONE), item(ref, DONE | {"result": 2})
        )
    assert first["receipt"]["disposition"] == "APPLIED"
    assert second["receipt"]["disposition"] == "EVIDENCE_ONLY"


async def test_an_attempt_has_a_few_open_commands_and_costs_nobody_else_a_place(
    gateway: Gateway, app: App, http: httpx.AsyncClient, dispatcher: Dispatcher, pools: Pools
) -> None:
    """INV-20, INV-37: repeats by hundreds, whose requests nobody waits for any more."""

    def crowd(ref: dict[str, str]) -> list[dict[str, object]]:
        return [item(ref) for _ in range(256)]

    lane = gateway.node.commands.attempts[Operation.RENEW]
    async with worker_on(gateway, app) as worker:
        wild, calm = await running(http, dispatcher, worker, 2)
        async with pools.background.acquire() as blocker, blocker.transaction():
            await blocker.execute(
                "SELECT 1 FROM lease WHERE attempt_id = $1 FOR UPDATE", wild["attempt_id"]
            )
            first = asyncio.create_task(ask(http, RENEW, worker, *crowd(wild)))
            await eventually(lambda: lane.open > 0)
            for _ in range(20):
                again = await ask(http, RENEW, worker, *crowd(wild))
                assert {result["error"]["code"] for result in again} == {"rate_limited"}
                assert {result["status"] for result in again} == {429}
            assert lane.open == limits.HELD_COMMANDS_MAX
            [kept] = await ask(http, RENEW, worker, item(calm))
            assert kept["lease"]["active"] is True
        found = [result["status"] for result in await first]
        assert found.count(429) == 256 - limits.HELD_COMMANDS_MAX
        await eventually(lambda: lane.open == 0)
        # Answered, it has its places again.
        [kept] = await ask(http, RENEW, worker, item(wild))
        assert kept["lease"]["active"] is True


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400),
        (b'{"instance_id":"x","instance_secret":"y","items":[]}', 400),
        (b'{"instance_id":"x","instance_secret":"y","items":[{}]}', 422),
        (b'{"instance_id":"x","instance_secret":"y","items":[{}],"items":[{}]}', 400),
        (b'{"instance_id":"x","instance_secret":"y","items":[' + b"1," * 256 + b"1]}", 400),
        (b"[" * 100_000, 400),
        (b" " * (1024 * 1024 + 1), 413),
    ],
)
async def test_a_broken_request_is_refused_whole(
    http: httpx.AsyncClient, body: bytes, status: int
) -> None:
    answer = await http.post(RENEW, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text


async def test_it_needs_the_permission_to_work(gateway: Gateway, pools: Pools) -> None:
    reader = await make_app(pools, "reader", "letters", scopes=("read", "submit"))
    async with httpx.AsyncClient(base_url=gateway.url, headers=reader.headers) as http:
        assert (await http.post(FINISH, json={})).status_code == 403
    async with httpx.AsyncClient(base_url=gateway.url) as http:
        assert (await http.post(FINISH, json={})).status_code == 401


async def test_who_proves_nothing_leaves_a_line_and_no_row(
    gateway: Gateway,
    http: httpx.AsyncClient,
    app: App,
    dispatcher: Dispatcher,
    pools: Pools,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """OP-22: by a wrong lease secret over either way, or a wrong secret of the instance."""
    async with worker_on(gateway, app) as worker:
        (ref,) = await running(http, dispatcher, worker)
        forged = ref | {"lease_secret": new_secret()}
        assert (await worker.ask("task.renew", forged))["error"]["code"] == "attempt_not_found"
        (wrong,) = await ask(http, RENEW, worker, item(forged))
        (foreign,) = await ask(http, RENEW, worker, item(ref), instance_secret=new_secret())
        assert {wrong["status"], foreign["status"]} == {404}
    unproven = gateway.node.commands.unproven
    assert unproven.count == 3
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "attempt_not_proven" in one]
    assert worker.session_id in line
    assert ref["attempt_id"] in line
    assert forged["lease_secret"] not in line
    assert await pools.background.fetchval("SELECT count(*) FROM evidence") == 0
    assert "orbit_gateway_unproven_commands_total 3.0" in (await http.get("/metrics")).text
