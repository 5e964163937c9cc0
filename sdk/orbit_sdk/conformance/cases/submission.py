"""The task API: acceptance, keys, errors (R-060 to R-063, R-090 to R-107, OP-40 to OP-48)."""

import asyncio
import json
from datetime import timedelta

from orbit_sdk.conformance.bench import Bench, new_key, wire_time
from orbit_sdk.conformance.checks import check_once, expect, expect_equal
from orbit_sdk.conformance.peer import Frame, instant, new_id

JSON_BYTES_MAX = 262_144
BODY_BYTES_MAX = 1_048_576


@check_once
async def first_submission(bench: Bench) -> None:
    """R-060, R-090, R-100: a first submission is answered 201 with id, state and revision.

    A submission; the task over HTTP.
    """
    answer = await bench.post(bench.submission())
    expect_equal(answer.status, 201, "the status", answer.body)
    expect_equal(answer.data["deduplicated"], False, "deduplicated", answer.body)
    expect_equal(
        (answer.data["state"], answer.data["revision"]), ("WAITING", "1"), "it", answer.body
    )
    task = await bench.task(answer.data["id"])
    expect_equal((task["state"], task["handler"]), ("WAITING", bench.handler), "the task", task)


@check_once
async def same_submission_again(bench: Bench) -> None:
    """R-091: the same submission again is answered 200 with the original id, deduplicated.

    One body twice under one key.
    """
    key, body = new_key(), bench.submission()
    first, again = await bench.post(body, key), await bench.post(body, key)
    expect_equal((first.status, again.status), (201, 200), "the statuses", again.body)
    expect_equal(again.data["id"], first.data["id"], "the id", again.body)
    expect_equal(again.data["deduplicated"], True, "deduplicated", again.body)


@check_once
async def same_key_with_another_meaning(bench: Bench) -> None:
    """R-092: one key with a request of another meaning is answered 409 idempotency_conflict.

    One key with another payload, then with another priority.
    """
    key, body = new_key(), bench.submission()
    await bench.post(body, key)
    for change in ({"payload": 2}, {"priority": 1}):
        (await bench.post({**body, **change}, key)).refused(409, "idempotency_conflict")


async def same_meaning(bench: Bench, one: str, other: str) -> None:
    key = new_key()
    for text, status in ((one, 201), (other, 200)):
        answer = await bench.call("POST", "/v1/tasks", text=text, key=key)
        expect_equal(answer.status, status, "the status", answer.body)


@check_once
async def meaning_is_not_spelling(bench: Bench) -> None:
    """R-097, OP-42: order of keys, spelling of numbers and written defaults change no meaning.

    One key with two spellings of one submission.
    """
    body = bench.submission(payload={"a": 100, "b": [1, 0]})
    other: Frame = {**dict(reversed(body.items())), "priority": 0}
    other["retry"] = {
        "attempt_timeout_ms": 3_600_000,
        "max_delay_ms": 60_000,
        "initial_delay_ms": 1_000,
        "max_attempts": 3,
    }
    text = json.dumps(other)
    text = text.replace('{"a": 100, "b": [1, 0]}', '{"b":[1.0,-0],"a":1e2}')
    await same_meaning(bench, json.dumps(body), text)


@check_once
async def large_numbers_differ(bench: Bench) -> None:
    """R-097, OP-42: numbers are compared exactly, not as doubles.

    One key with 2^53 and 2^53 + 1 in the payload.
    """
    key = new_key()
    await bench.post(bench.submission(payload=2**53), key)
    body = bench.submission(payload=2**53 + 1)
    (await bench.post(body, key)).refused(409, "idempotency_conflict")


@check_once
async def array_order_is_meaning(bench: Bench) -> None:
    """R-097, OP-42: the order of an array is part of the meaning.

    One key with [1, 2] and [2, 1].
    """
    key, body = new_key(), bench.submission(payload=[1, 2])
    await bench.post(body, key)
    other = {**body, "payload": [2, 1]}
    (await bench.post(other, key)).refused(409, "idempotency_conflict")


@check_once
async def one_key_at_once(bench: Bench) -> None:
    """R-096, OP-41: concurrent firsts of one key create one task.

    Ten requests at once: one 201, nine 200, one id.
    """
    key, body = new_key(), bench.submission()
    answers = await asyncio.gather(*(bench.post(body, key) for _ in range(10)))
    statuses = sorted(answer.status for answer in answers)
    expect_equal(statuses, [200] * 9 + [201], "the statuses")
    expect_equal(len({answer.data["id"] for answer in answers}), 1, "the number of ids")


@check_once
async def key_is_required(bench: Bench) -> None:
    """OP-41, R-093: a submission needs an Idempotency-Key of 1 to 128 visible ASCII characters.

    None, one with a space, one of 129 characters are 400; one of 128 is accepted.
    """
    body = bench.submission()
    (await bench.call("POST", "/v1/tasks", body=body)).refused(400, "key_required")
    for key in ("two words", "k" * 129):
        (await bench.post(body, key)).refused(400, "key_required")
    longest = new_key().ljust(128, "~")
    expect_equal((await bench.post(body, longest)).status, 201, "the status")


@check_once
async def payload_is_kept_as_written(bench: Bench) -> None:
    """R-005, R-052: a payload is delivered as it was written.

    Odd spelling, a NUL escape, thirty digits; the text of the task over HTTP.
    """
    spelled = '{"z": 1.50, "a":"\\u0000 \\u00e9", "n": 123456789012345678901234567890}'
    text = json.dumps(bench.submission(payload="HERE")).replace('"HERE"', spelled)
    answer = await bench.call("POST", "/v1/tasks", text=text, key=new_key())
    expect_equal(answer.status, 201, "the status", answer.body)
    read = await bench.call("GET", f"/v1/tasks/{answer.data['id']}")
    expect(spelled in read.text, "the payload was spelled anew", read.text)


@check_once
async def payload_has_a_limit(bench: Bench) -> None:
    """R-005, R-053, OP-47: a payload has at most 256 KiB, a body at most 1 MiB.

    256 KiB is accepted; one byte more, and a body over 1 MiB, are 413.
    """
    await bench.submit(payload="x" * (JSON_BYTES_MAX - 2))
    large = await bench.post(bench.submission(payload="x" * (JSON_BYTES_MAX - 1)))
    large.refused(413, "payload_too_large")
    huge = await bench.post(bench.submission(payload="x" * BODY_BYTES_MAX))
    huge.refused(413, "payload_too_large")


@check_once
async def malformed_bodies(bench: Bench) -> None:
    """R-103, OP-40, OP-47: a body of another shape is 400.

    No JSON, a list, an unknown field, a missing field, a wrong type, a repeated key, null payload.
    """
    text = json.dumps(bench.submission())
    payload = '"payload": {"check": true}'
    expect(payload in text, "the payload is spelled otherwise")
    for wrong in (
        "{",
        "[]",
        text[:-1] + ', "more": 1}',
        text.replace('"handler": ', '"handlers": '),
        text[:-1] + ', "priority": "1"}',
        text.replace(payload, payload + ", " + payload),
        text.replace(payload, '"payload": {"a": 1, "a": 1}'),
        text.replace(payload, '"payload": null'),
        text.replace(payload, '"payload": NaN'),
    ):
        answer = await bench.call("POST", "/v1/tasks", text=wrong, key=new_key())
        answer.refused(400)


@check_once
async def meaningless_values(bench: Bench) -> None:
    """R-103, OP-27, OP-40: a value of the right type that cannot be accepted is 422.

    A priority of 101, a handler with a space, initial over max, 101 attempts, a 13th month.
    """
    retry = {
        "max_attempts": 3,
        "initial_delay_ms": 1,
        "max_delay_ms": 1,
        "attempt_timeout_ms": 1_000,
    }
    changes: tuple[Frame, ...] = (
        {"priority": 101},
        {"handler": "two words"},
        {"retry": {**retry, "initial_delay_ms": 2}},
        {"retry": {**retry, "max_attempts": 101}},
        {"available_at": "2030-13-01T00:00:00Z"},
        {"business_key": "k" * 192},
    )
    for change in changes:
        (await bench.post(bench.submission(**change))).refused(422)


@check_once
async def deadlines_lie_in_order(bench: Bench) -> None:
    """OP-40: available_at, start_deadline_at and deadline_at lie in this order, else 422.

    Each pair in the wrong order, and a deadline that has passed.
    """
    peer = await bench.worker()
    now = instant(peer.welcome["server_time"])
    near, far = wire_time(now + timedelta(minutes=1)), wire_time(now + timedelta(minutes=2))
    for change in (
        {"available_at": far, "deadline_at": near},
        {"start_deadline_at": far, "deadline_at": near},
        {"available_at": far, "start_deadline_at": near, "deadline_at": far},
        {"deadline_at": wire_time(now - timedelta(minutes=1))},
    ):
        (await bench.post(bench.submission(**change))).refused(422)


@check_once
async def other_media_type(bench: Bench) -> None:
    """OP-47: a body of another media type is 415.

    A submission as text/plain.
    """
    answer = await bench.call(
        "POST",
        "/v1/tasks",
        body=bench.submission(),
        key=new_key(),
        headers={"Content-Type": "text/plain"},
    )
    answer.refused(415)


@check_once
async def unknown_things(bench: Bench) -> None:
    """R-105, R-100, OP-47: what is absent is 404, a wrong method 405, in the envelope.

    An unknown task, a task id that is none, an unknown queue, an unknown path, DELETE of tasks.
    """
    for path in (f"/v1/tasks/{new_id()}", "/v1/tasks/none", f"/v1/tasks/{new_id()}/attempts"):
        (await bench.call("GET", path)).refused(404)
    (await bench.post(bench.submission(queue="no-such-queue"))).refused(404)
    (await bench.call("GET", "/v1/nothing")).refused(404)
    (await bench.call("DELETE", "/v1/tasks")).refused(405)


@check_once
async def credential_is_required(bench: Bench) -> None:
    """R-104, OP-51: a request without a valid credential is 401, whatever it asks for.

    A submission and two reads, without a credential and with a torn one.
    """
    for credential in ("", f"Bearer {bench.target.credential[:-1]}", "Basic abc"):
        headers = {"Authorization": credential}
        (
            await bench.call(
                "POST", "/v1/tasks", body=bench.submission(), key=new_key(), headers=headers
            )
        ).refused(401)
        for path in (f"/v1/tasks/{new_id()}", "/v1/queues"):
            (await bench.call("GET", path, headers=headers)).refused(401)


@check_once
async def another_application_sees_nothing(bench: Bench) -> None:
    """R-054, OP-47: another application's task is 404, and its keys are its own.

    A task read with the credential of another application.
    """
    headers = {"Authorization": f"Bearer {bench.need_other_credential()}"}
    task_id = await bench.submit()
    for path in (f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/attempts"):
        (await bench.call("GET", path, headers=headers)).refused(404)


@check_once
async def attempts_come_in_pages(bench: Bench) -> None:
    """R-063, R-053, OP-46: attempts are listed oldest first, in pages of at most 200.

    A task of three attempts, read one by one; a page of 201 is 422.
    """
    retry = {
        "max_attempts": 3,
        "initial_delay_ms": 0,
        "max_delay_ms": 0,
        "attempt_timeout_ms": 60_000,
    }
    task_id = await bench.submit(retry=retry)
    peer = await bench.worker()
    for _ in range(3):
        attempt = await peer.assignment()
        await peer.start(attempt)
        await peer.finish(attempt, "FAILED", "again", "again")
    epochs, path = [], f"/v1/tasks/{task_id}/attempts?limit=1"
    cursor = ""
    while True:
        page = await bench.call("GET", path + (f"&cursor={cursor}" if cursor else ""))
        epochs += [int(row["epoch"]) for row in page.data["items"]]
        cursor = page.data["next_cursor"]
        if not cursor:
            break
    expect_equal(len(epochs), 3, "the number of attempts")
    expect_equal(epochs, sorted(set(epochs)), "the order")
    (await bench.call("GET", f"/v1/tasks/{task_id}/attempts?limit=201")).refused(422)


@check_once
async def health(bench: Bench) -> None:
    """R-070, OP-48: liveness and readiness answer without a credential.

    GET of both on a server that is up.
    """
    for path in ("/health/live", "/health/ready"):
        answer = await bench.call("GET", path, headers={"Authorization": ""})
        expect_equal(answer.status, 200, f"the status of {path}", answer.body)


@check_once
async def request_id_is_not_the_key(bench: Bench) -> None:
    """R-095, OP-51: every answer has a request id of its own.

    One submission twice under one key.
    """
    key, body = new_key(), bench.submission()
    first, again = await bench.post(body, key), await bench.post(body, key)
    differs = first.body["request_id"] != again.body["request_id"]
    expect(differs, "the request id came twice", again.body)
