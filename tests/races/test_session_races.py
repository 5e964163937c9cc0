"""Races of worker sessions on real gateways: B-07 to B-12, B-15, B-20, B-22, B-23.

Leases are thirty seconds long unless a test is about their end, so whatever happens within two
seconds happened by an event and not because a lease ran out.
"""

import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from gateway.lanes import Lane
from gateway.worker.dialect import Operation
from runtime import failpoints
from store.commands import FinishCommand
from tests.gateway.harness import Assigned, Worker, eventually, ids, make_app, worker_on
from tests.races.house import (
    AT_ONCE,
    SOON_S,
    House,
    OpenHouse,
    finish,
    report,
    run,
    take,
    work_off,
)
from tests.races.repeats import CHEAP, IS_FULL

pytestmark = pytest.mark.timeout(240)


def frame_of(worker: Worker, kind: str, body: object) -> tuple[str, str]:
    """A frame to be sent any number of times, and its message id."""
    message_id = ids.next()
    frame = {
        "protocol_version": "1",
        "type": kind,
        "message_id": message_id,
        "session_id": worker.session_id,
        "body": body,
    }
    return message_id, json.dumps(frame)


def identity_of(worker: Worker) -> dict[str, Any]:
    """What lets another connection be the same instance."""
    return {"instance_id": worker.instance_id, "instance_secret": worker.instance_secret}


async def insist(worker: Worker, texts: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Send all frames, again and again those that get no answer; answers in the order sent."""
    answers: dict[str, dict[str, Any]] = {}
    for _ in range(60):
        missing = [message_id for message_id in texts if message_id not in answers]
        if not missing:
            return {message_id: answers[message_id] for message_id in texts}
        for message_id in missing:
            await worker.socket.send(texts[message_id])
        for _ in missing:
            try:
                frame = await worker.receive(0.15)
            except TimeoutError:
                break
            answers.setdefault(frame["reply_to"], frame)
    raise AssertionError(f"{len(missing)} of {len(texts)} frames were never answered")


async def test_b07_lost_answers_are_asked_for_again_and_are_the_same(house: House) -> None:
    """INV-8: a third of all frames to the worker is lost, the connection stays."""
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=100)
        await house.submit(100)
        held = await take(worker, 100)
        failpoints.arm(failpoints.read_failpoints("gateway.frame.before=drop@0.3", 7))
        receipts: dict[str, dict[str, Any]] = {}
        texts: dict[str, str] = {}
        for kind in ("task.start", "task.renew", "task.renew", "task.finish"):
            bodies = [report(item) if kind == "task.finish" else item.ref for item in held]
            frames = dict(frame_of(worker, kind, body) for body in bodies)
            answers = await insist(worker, frames)
            assert {answer["type"] for answer in answers.values()} == {"ack"}
            texts |= frames
            receipts |= {key: answer["body"]["receipt"] for key, answer in answers.items()}
        failpoints.arm([])
        await drain_frames(worker)
        again = await insist(worker, texts)
        for message_id, answer in again.items():
            assert answer["body"]["receipt"] == receipts[message_id]
            assert answer["body"]["deduplicated"] is True
            assert answer["body"]["lease"]["active"] is False
    counts = await house.pools.background.fetch("SELECT DISTINCT attempt_count FROM task")
    assert [row[0] for row in counts] == [1]


async def drain_frames(worker: Worker) -> None:
    """Read what answers to repeated frames are still on their way."""
    while True:
        try:
            await worker.receive(0.3)
        except TimeoutError:
            return


async def test_b08_late_reports_get_a_final_answer_and_free_their_slots(house: House) -> None:
    """INV-8, INV-13: fifty attempts lapse under a worker of fifty slots, which then reports."""
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=50)
        for _ in range(CHEAP // 20):
            tasks = await house.submit(50, retry=AT_ONCE | {"max_attempts": 1})
            held = await take(worker, 50)
            for item in held:
                assert (await worker.ask("task.start", item.ref))["type"] == "ack"
            await house.put_over([item.ref["attempt_id"] for item in held])
            await house.until(
                "SELECT count(*) FROM task WHERE state = 'FAILED' AND id = ANY ($1::uuid[])",
                50,
                tasks,
            )
            for item in held:
                answer = await finish(worker, item)
                assert answer["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"
                assert answer["body"]["lease"] | {"active": False} == answer["body"]["lease"]
            await house.submit(50)
            for item in await take(worker, 50):
                await run(worker, item)


async def test_b08_no_report_is_repeated_for_ever(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8, INV-13: the worker of the SDK reports fifty lapsed attempts, each at most twice; then
    all fifty slots take new work, within a second of its submission by the database's clock."""
    reports: Counter[str] = Counter()

    def count_on(lane: Lane[Any, Any]) -> None:
        really = lane._execute

        async def execute(batch: Sequence[FinishCommand]) -> Sequence[Any]:
            reports.update(command.attempt_id for command in batch)
            return await really(batch)

        monkeypatch.setattr(lane, "_execute", execute)

    for gateway in house.gateways:
        count_on(gateway.node.commands.attempts[Operation.FINISH])
    gate = asyncio.Event()
    slowest = []
    async with house.crew(count=1, capacity=50, gate=gate) as runs:
        for _ in range(CHEAP // 20):
            gate.clear()
            tasks = await house.submit(50, retry=AT_ONCE | {"max_attempts": 1})
            await eventually(partial(_all_begun, runs, tasks))
            slowest.append(await house.fetchval(WAITED, tasks))
            held = await house.rows("SELECT attempt_id FROM lease")
            await house.put_over([str(row[0]) for row in held])
            await house.until("SELECT count(*) FROM lease", 0)
            gate.set()
            await house.until(LATE_REPORTS, 50, [row[0] for row in held])
        gate.clear()
        tasks = await house.submit(50)
        await eventually(partial(_all_begun, runs, tasks))
        slowest.append(await house.fetchval(WAITED, tasks))
        gate.set()
        await house.until("SELECT count(*) FROM task WHERE state IS NULL", 0)
    assert len(reports) == 50 * (CHEAP // 20 + 1)
    assert set(reports.values()) <= {1, 2}
    assert statistics.median(slowest) < 1.0, slowest


LATE_REPORTS = (
    "SELECT count(*) FROM evidence WHERE operation = 'finish' AND attempt_id = ANY ($1::uuid[])"
)
WAITED = (
    "SELECT max(extract(epoch FROM l.granted_at - t.created_at))::float FROM lease l"
    " JOIN task t ON t.id = l.task_id WHERE t.id = ANY ($1::uuid[])"
)


def _all_begun(runs: Counter[str], tasks: list[str]) -> bool:
    return all(runs[task] for task in tasks)


async def test_b09_a_draining_worker_keeps_its_leases_and_gets_nothing_new(house: House) -> None:
    """INV-15, INV-20."""
    for _ in range(CHEAP // 10):
        async with (
            worker_on(house.gateways[0], house.app, hello=False) as worker,
            worker_on(house.gateways[0], house.app, hello=False) as other,
        ):
            await worker.hello(capacity=25)
            await house.submit(20)
            held = await take(worker, 20)
            for item in held:
                await worker.ask("task.start", item.ref)
            drain = {"sequence": "1", "capacity": 25, "drain": True}
            asked = await worker.send("worker.capacity", drain)
            acked = await worker.answer(asked)
            assert acked["body"]["draining"] is True
            await house.submit(10)
            for _ in range(3):
                for item in held:
                    renewed = await worker.ask("task.renew", item.ref)
                    assert renewed["body"]["lease"]["active"] is True
            for item in held:
                assert (await finish(worker, item))["body"]["receipt"]["disposition"] == "APPLIED"
            assert worker.assigned == []
            await other.hello(capacity=10)
            for item in await take(other, 10):
                await run(other, item)
            assert worker.assigned == []


async def test_b10_nothing_ends_a_drain(house_of: OpenHouse) -> None:
    """INV-12, INV-15: not a later sequence, not an equal or lower one, not another gateway."""
    async with house_of() as house, worker_on(house.gateways[0], house.app) as other:
        for _ in range(CHEAP // 5):
            async with worker_on(house.gateways[0], house.app) as drained:
                drain = {"sequence": "5", "capacity": 4, "drain": True}
                await drained.ask("worker.capacity", drain)
                for sequence, accepted in ("6", True), ("6", True), ("5", False), ("3", False):
                    level = {"sequence": sequence, "capacity": 4, "drain": False}
                    answer = await drained.ask("worker.capacity", level)
                    assert (answer["type"] == "ack") is accepted
                    assert not accepted or answer["body"]["draining"] is True
            identity = identity_of(drained)
            async with worker_on(house.gateways[1], house.app, **identity) as again:
                assert again.welcome["draining"] is True
                await house.submit(2)
                for item in await take(other, 2):
                    await run(other, item)
                assert again.assigned == drained.assigned == []


async def test_b11_an_old_session_is_told_so_and_changes_no_lease(house_of: OpenHouse) -> None:
    """INV-19, INV-21: a renewal on the old socket meets the hello on the new one."""
    lease = "SELECT lease_until FROM lease WHERE attempt_id = $1"
    async with house_of() as house:
        refused = 0
        for turn in range(CHEAP // 2):
            old_gateway, new_gateway = house.gateways[turn % 3], house.gateways[(turn + 1) % 3]
            async with worker_on(old_gateway, house.app, hello=False) as old:
                await old.hello(capacity=1)
                await house.submit(1)
                [held] = await take(old, 1)
                await old.ask("task.start", held.ref)
                identity = identity_of(old)
                async with worker_on(new_gateway, house.app, hello=False, **identity) as new:
                    await new.hello(capacity=1)
                    before = await house.fetchval(lease, held.ref["attempt_id"])
                    refused += await _is_refused(old, held)
                    assert await house.fetchval(lease, held.ref["attempt_id"]) == before
                    early = await new.ask("task.renew", held.ref)
                    assert early["error"]["code"] == "resume_required"
                    resumed = await new.ask("worker.resume", held.ref)
                    assert resumed["body"]["active"] is True
                    renewed = await new.ask("task.renew", held.ref)
                    assert renewed["body"]["lease"]["active"] is True
                    await finish(new, held)
        assert refused == CHEAP // 2


async def _is_refused(old: Worker, held: Assigned) -> bool:
    """Whether a renewal on a superseded session is refused as such, at once."""
    began = time.monotonic()
    try:
        await old.send("task.renew", held.ref)
        frame = await old.receive(SOON_S)
    except ConnectionClosed as closed:
        return closed.rcvd is not None and closed.rcvd.code == 4409
    assert time.monotonic() - began < SOON_S
    return bool(frame["error"]["code"] == "session_superseded")


async def test_b12_each_resume_is_judged_alone(house: House) -> None:
    """INV-21: one lapsed, one that never was, one of another namespace; six go on."""
    rival = await make_app(house.pools, "rival", "post")
    async with worker_on(house.gateways[0], rival) as stranger:
        for _ in range(CHEAP // 10):
            async with worker_on(house.gateways[0], house.app, hello=False) as old:
                await old.hello(capacity=7)
                await house.submit(7, retry=AT_ONCE)
                held = await take(old, 7)
                for item in held:
                    await old.ask("task.start", item.ref)
            await house.put_over([held[6].ref["attempt_id"]])
            identity = identity_of(old)
            async with worker_on(house.gateways[0], house.app, hello=False, **identity) as new:
                await new.hello(capacity=7)
                refs = [item.ref for item in held]
                asked = [refs[0] | {"attempt_id": ids.next()}, *refs, refs[0] | {"epoch": "7"}]
                frames = dict(frame_of(new, "worker.resume", ref) for ref in asked)
                answers = list((await insist(new, frames)).values())
                foreign = await stranger.ask("worker.resume", refs[0])
                refusals = [answers[0], answers[-1], foreign]
                assert {(a["type"], a["error"]["code"]) for a in refusals} == {
                    ("error", "attempt_not_found")
                }
                assert [a["body"]["active"] for a in answers[1:-1]] == [True] * 6 + [False]
                for item in held[:6]:
                    applied = (await finish(new, item))["body"]["receipt"]["disposition"]
                    assert applied == "APPLIED"
                await work_off(new, house)


async def test_b15_a_process_under_an_old_name_keeps_no_dead_attempt_alive(
    house_of: OpenHouse, seed: int
) -> None:
    """INV-6, INV-20: pings and capacity flow, nothing is resumed; the lease ends when it ends."""
    async with house_of(lease_ms=1_000) as house:
        async with worker_on(house.gateways[0], house.app, hello=False) as dead:
            await dead.hello(capacity=5)
            await house.submit(5)
            held = await take(dead, 5)
            for item in held:
                await dead.ask("task.start", item.ref)
        identity = identity_of(dead)
        async with worker_on(house.gateways[0], house.app, hello=False, **identity) as alive:
            await alive.hello(capacity=5)
            sequence = 0
            over = "SELECT count(*) FROM attempt WHERE state = 'EXPIRED'"
            async with asyncio.timeout(10):
                while await house.fetchval(over) < 5:
                    sequence += 1
                    level = {"sequence": str(sequence), "capacity": 5, "drain": False}
                    assert (await alive.ask("worker.capacity", level))["type"] == "ack"
                    await alive.socket.ping()
            late = await house.fetchval(
                "SELECT max(finished_at - lease_until) < interval '1 s' AND"
                " min(finished_at - lease_until) >= interval '0' FROM attempt"
            )
            assert late, "settled within a second of the lease's end and never before"
            again = await take(alive, 5)
            assert {item.ref["epoch"] for item in again} == {"2"}
            for item in again:
                await run(alive, item)


async def test_b20_short_tasks_pass_a_busy_worker_by(house: House) -> None:
    """INV-12: nobody is given more than it can take, whoever is busy."""
    async with (
        worker_on(house.gateways[0], house.app, hello=False) as busy,
        worker_on(house.gateways[0], house.app, hello=False) as idle,
    ):
        await busy.hello(capacity=1)
        await house.submit(1)
        [long] = await take(busy, 1)
        await busy.ask("task.start", long.ref)
        await idle.hello(capacity=2)
        over = (
            "SELECT count(*) FROM session s WHERE s.capacity <"
            " (SELECT count(*) FROM lease l WHERE l.session_id = s.id)"
        )
        for _ in range(CHEAP // 10):
            began = time.monotonic()
            await house.submit(20)
            for _ in range(20):
                [item] = await take(idle, 1)
                await run(idle, item)
                assert await house.fetchval(over) == 0
            assert time.monotonic() - began < SOON_S
        await busy.ask("task.renew", long.ref)
        assert busy.assigned == []
        await finish(busy, long)


async def test_b22_a_task_cancelled_before_its_start_holds_no_slot(house: House) -> None:
    """INV-13, INV-18: fifty assigned tasks at a time are cancelled through all gateways, and none
    of them may start; as many new ones then fill every slot of the worker at once."""
    async with worker_on(house.gateways[0], house.app, hello=False) as worker:
        await worker.hello(capacity=50)
        session = house.gateways[0].node.sockets[worker.session_id].session
        for _ in range(20 if IS_FULL else 2):
            await house.submit(50)
            held = await take(worker, 50)
            answers = await asyncio.gather(
                *(
                    house.https[place % 3].post(
                        f"/v1/tasks/{item.ref['task_id']}:cancel",
                        json={"reason": "race"},
                        headers={"Idempotency-Key": ids.next()},
                    )
                    for place, item in enumerate(held)
                )
            )
            assert {answer.status_code for answer in answers} == {200}
            for item in held:
                refused = await worker.ask("task.start", item.ref)
                assert refused["body"]["receipt"]["disposition"] == "EVIDENCE_ONLY"
                assert refused["body"]["lease"]["state"] == "CANCELLED"
            assert (session.held, session.free) == (0, 50)
            await house.submit(50)
            for item in await take(worker, 50):
                await run(worker, item)
    states = await house.rows("SELECT state, attempt_count, count(*) FROM task GROUP BY 1, 2")
    half = 1_000 if IS_FULL else 100
    assert {tuple(row) for row in states} == {("CANCELLED", 0, half), ("SUCCEEDED", 1, half)}


async def test_b22_a_refused_start_holds_no_slot_for_good(house_of: OpenHouse, seed: int) -> None:
    """INV-13, INV-18: the queue is paused between assignment and start; then it goes on."""
    async with house_of(lease_ms=1_000) as house:
        async with worker_on(house.gateways[0], house.app, hello=False) as worker:
            await worker.hello(capacity=20)
            await house.submit(60)
            held = await take(worker, 20)
            await house.pools.background.execute("UPDATE gate SET paused = true")
            for item in held:
                refused = await worker.ask("task.start", item.ref)
                assert refused["error"]["code"] == "execution_gated"
            await house.until("SELECT count(*) FROM lease", 0)
            await house.pools.background.execute("UPDATE gate SET paused = false")
            await work_off(worker, house)
        assert await house.fetchval("SELECT max(attempt_count) FROM task") == 1
        assert house.gateways[0].node.sockets == {}


async def test_b23_what_was_assigned_to_a_closed_session_goes_elsewhere_at_once(
    by_event_alone: Callable[[], None], house: House
) -> None:
    """INV-16, INV-17: ten unstarted tasks, a session on another gateway, and neither a lease to
    wait for nor a scan that could find them: each is offered again because the session closed.

    By the database's clock the slowest of ten follows the close within a second: in the middle of
    all rounds, for a busy machine may hold up any one of them.
    """
    slowest = []
    for turn in range(CHEAP // 5):
        here, there = house.gateways[turn % 3], house.gateways[(turn + 1) % 3]
        async with worker_on(here, house.app, hello=False) as leaving:
            await leaving.hello(capacity=10)
            await house.submit(10)
            await take(leaving, 10)
            by_event_alone()
            async with worker_on(there, house.app, hello=False) as staying:
                await staying.hello(capacity=10)
                await leaving.socket.close()
                again = await take(staying, 10)
                assert {item.ref["epoch"] for item in again} == {"2"}
                slowest.append(await house.fetchval(AFTER_CLOSE, leaving.session_id))
                for item in again:
                    await run(staying, item)
    assert statistics.median(slowest) < 1.0, slowest


AFTER_CLOSE = (
    "SELECT max(extract(epoch FROM l.granted_at - s.closed_at))::float FROM lease l, session s"
    " WHERE s.id = $1"
)
