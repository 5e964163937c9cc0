"""Assignment and start: two steps, one holder (R-030 to R-034, R-123, R-124, R-131, OP-30)."""

from datetime import UTC, datetime, timedelta

from orbit_sdk.conformance.bench import Bench, capability, wire_time
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import instant, new_id, new_secret, report, unwrapped


@check
async def assignment_carries_the_task(bench: Bench) -> None:
    """R-031, R-123: an assignment carries the task as it was submitted, in state LEASED.

    A submission with every optional field; the assigned task must say the same.
    """
    now = datetime.now(UTC)
    said = {
        "payload": {"text": "ä\u0000b", "list": [1, 2.5, None], "number": 2**53 + 1},
        "recovery_safety": "RECONCILE_ONLY",
        "retry": {
            "max_attempts": 7,
            "initial_delay_ms": 5,
            "max_delay_ms": 6,
            "attempt_timeout_ms": 120_000,
        },
        "business_key": "order 4711",
        "start_deadline_at": wire_time(now + timedelta(minutes=5)),
        "deadline_at": wire_time(now + timedelta(minutes=9)),
    }
    _, attempt = await bench.assigned(**said)
    task = attempt.task
    for name in ("payload", "recovery_safety", "retry", "business_key"):
        expect_equal(task[name], said[name], name, attempt.body)
    for name in ("start_deadline_at", "deadline_at"):
        expect_equal(instant(task[name]), instant(str(said[name])), name, attempt.body)
    expect_equal(task["queue_id"], bench.target.queue_id, "the queue", attempt.body)
    expect_equal(task["handler"], bench.handler, "the handler", attempt.body)
    expect_equal(task["attempt_count"], 1, "attempt_count", attempt.body)


@check
async def assignment_leaves_out_the_end(bench: Bench) -> None:
    """OP-33: an assignment carries no result, cancel_requested_at or completed_at.

    A first assignment.
    """
    _, attempt = await bench.assigned()
    odd = {"result", "cancel_requested_at", "completed_at"} & set(attempt.task)
    expect(not odd, f"it carries {sorted(odd)}", attempt.body)


@check
async def assignment_is_persisted(bench: Bench) -> None:
    """R-123, R-131: the lease is persisted before the assignment is sent.

    The task and its attempt over HTTP, after the assignment and before its start.
    """
    _, attempt = await bench.assigned()
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], "LEASED", "the task's state", task)
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(row["state"], "LEASED", "the attempt's state", row)
    expect_equal((row["id"], row["epoch"]), (attempt.body["attempt_id"], str(attempt.epoch)), "it")


@check
async def lease_of_an_assignment(bench: Bench) -> None:
    """OP-12: an unstarted lease lasts the lease duration, no longer than start_deadline_at.

    One assignment without a start deadline, one whose start must come within five seconds.
    """
    peer, attempt = await bench.assigned()
    left = instant(attempt.body["lease_until"]) - instant(attempt.body["server_time"])
    most = timedelta(milliseconds=peer.welcome["lease_duration_ms"])
    expect(timedelta(0) < left <= most, f"the lease lasts {left}", attempt.body)
    soon = instant(attempt.body["server_time"]) + timedelta(seconds=5)
    other = await bench.worker()
    await bench.submit(start_deadline_at=wire_time(soon))
    short = await other.assignment()
    expect(instant(short.body["lease_until"]) <= soon, f"the start deadline is {soon}", short.body)


@check
async def start_authorises(bench: Bench) -> None:
    """R-124, R-131, R-039: a start is confirmed as active and RUNNING once that is persisted.

    A start, then the task and its attempt over HTTP.
    """
    _, attempt, result = await bench.running()
    receipt = result["receipt"]
    expect_equal(receipt["disposition"], "APPLIED", "the disposition", result)
    expect_equal(
        (receipt["task_state"], receipt["attempt_state"]), ("RUNNING", "RUNNING"), "states", result
    )
    expect_equal(result["deduplicated"], False, "deduplicated", result)
    task = await bench.task(attempt.task["id"])
    expect_equal(task["state"], "RUNNING", "the task's state", task)
    expect_equal(task["revision"], receipt["task_revision"], "the revision", task)


@check
async def revision_grows_by_one(bench: Bench) -> None:
    """OP-20: revision starts at 1 and grows by 1 with every transition of the task.

    A submission (1), its assignment (2), its start (3), its finish (4).
    """
    peer, attempt, started = await bench.running()
    finished = await peer.finish(attempt)
    revisions = [
        attempt.task["revision"],
        started["receipt"]["task_revision"],
        finished["receipt"]["task_revision"],
    ]
    expect_equal(revisions, ["2", "3", "4"], "the revisions", finished)


@check
async def start_again_with_the_same_message(bench: Bench) -> None:
    """OP-21, R-038: a repeated start returns the original receipt, deduplicated.

    One start frame sent twice.
    """
    peer, attempt = await bench.assigned()
    message = new_id()
    first = await peer.start(attempt, message_id=message)
    again = await peer.start(attempt, message_id=message)
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)
    expect_equal(again["lease"]["active"], True, "the lease's active", again)


@check
async def start_again_with_a_new_message(bench: Bench) -> None:
    """OP-21: a second start of a running attempt returns the original start's receipt.

    Two start frames with two message ids.
    """
    peer, attempt, first = await bench.running()
    again = await peer.start(attempt)
    expect_equal(again["receipt"], first["receipt"], "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)


@check
async def unknown_attempt_and_wrong_proof_look_alike(bench: Bench) -> None:
    """OP-14, R-115: an unknown attempt and a wrong secret give the same attempt_not_found.

    Starts, renewals, resumes and finishes with a wrong secret, epoch, task, or attempt.
    """
    peer, attempt = await bench.assigned()
    wrongs = (
        {"lease_secret": new_secret()},
        {"epoch": str(attempt.epoch + 1)},
        {"task_id": new_id()},
        {"attempt_id": new_id()},
    )
    texts = set()
    for wrong in wrongs:
        ref = {**attempt.ref, **wrong}
        done = {"ref": ref, "outcome": "SUCCEEDED", "result": 1}
        for kind, body in (
            ("task.start", ref),
            ("task.renew", ref),
            ("worker.resume", ref),
            ("task.finish", done),
        ):
            frame = await peer.refused("attempt_not_found", kind, body)
            texts.add(frame["error"]["message"])
    expect_equal(len(texts), 1, "the number of different messages")
    await peer.start(attempt)


@check
async def only_the_holder_may_start(bench: Bench) -> None:
    """R-115, R-119: proof of an attempt in another worker's hands authorises nothing.

    A worker with the whole reference of another's assignment tries start, renew and finish.
    """
    peer, attempt = await bench.assigned()
    thief = await bench.worker()
    for kind in ("task.start", "task.renew"):
        frame = await thief.ask(kind, attempt.ref)
        expect_equal(frame["type"], "error", "the answer", frame)
    frame = await thief.ask("task.finish", report(attempt, "SUCCEEDED", "stolen"))
    expect_equal(frame["type"], "error", "the answer", frame)
    result = await peer.start(attempt)
    expect_equal(result["lease"]["active"], True, "the holder's lease", result)


@check
async def pipelined_commands_keep_their_order(bench: Bench) -> None:
    """OP-06: pipelined commands of one attempt are judged in their order, one ack each.

    start, renew and finish sent without waiting.
    """
    peer, attempt = await bench.assigned()
    sent = [
        await peer.send("task.start", attempt.ref),
        await peer.send("task.renew", attempt.ref),
        await peer.send("task.finish", report(attempt, "SUCCEEDED", 1)),
    ]
    states = []
    for _ in sent:
        frame = unwrapped(await peer.reply())
        expect_equal(frame["type"], "ack", "the answer", frame)
        states.append((frame["reply_to"], frame["body"]["receipt"]["task_state"]))
    wanted = list(zip(sent, ("RUNNING", "RUNNING", "SUCCEEDED"), strict=True))
    expect_equal(states, wanted, "the answers")


@check
async def only_the_exact_triple_matches(bench: Bench) -> None:
    """OP-30, R-055: a task goes only to a worker that declares exactly its triple.

    Workers of another handler version and payload version wait first; the right one comes last.
    """
    near = [
        {**capability(bench.handler), "handler_version": "2"},
        {**capability(bench.handler), "payload_version": "2"},
        capability(f"{bench.handler}.more"),
    ]
    wrong = await bench.worker(8, capabilities=near)
    task_id = await bench.submit()
    right = await bench.worker()
    attempt = await right.assignment()
    expect_equal(attempt.task["id"], task_id, "the assigned task", attempt.body)
    await wrong.nothing_was_assigned()


@check
async def higher_priority_goes_first(bench: Bench) -> None:
    """OP-30: higher priority first, then the older task.

    Four tasks of priorities 0, 5, 5 and -5 wait; one worker takes them one by one.
    """
    ids = [await bench.submit(priority=priority) for priority in (0, 5, 5, -5)]
    peer = await bench.worker()
    order = []
    for _ in ids:
        attempt = await peer.assignment()
        order.append(ids.index(attempt.task["id"]))
        await peer.start(attempt)
        await peer.finish(attempt)
    expect_equal(order, [1, 2, 0, 3], "the order of the submissions")


@check
async def nothing_is_assigned_before_it_is_due(bench: Bench) -> None:
    """OP-30, R-031: a task is not assigned before its available_at.

    A task that is due in a second and a half, and a worker that waits for it.
    """
    peer = await bench.worker()
    due = instant(peer.welcome["server_time"]) + timedelta(seconds=1.5)
    await bench.submit(available_at=wire_time(due))
    attempt = await peer.assignment()
    expect(instant(attempt.body["server_time"]) >= due, f"it was due at {due}", attempt.body)
