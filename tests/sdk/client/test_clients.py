"""Both clients against a real HTTP server: the same calls, checked through one driver."""

import asyncio
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from orbit_sdk import errors
from orbit_sdk.client.async_client import AsyncClient
from orbit_sdk.client.models import Submission
from orbit_sdk.client.sync_client import Client
from orbit_sdk.protocol.bodies import decode_batch_item, decode_submit
from orbit_sdk.protocol.states import RecoverySafety, TaskState
from tests.sdk.client.scripted_api import (
    CREDENTIAL,
    TASK_ID,
    Reply,
    failure,
    scripted_api,
    submitted,
    success,
    task,
)

Call = Callable[[Any], Any]


def blocking(url: str, call: Call, timeout_s: float) -> Any:
    with Client(url, CREDENTIAL, timeout_s=timeout_s) as client:
        return call(client)


def asynchronous(url: str, call: Call, timeout_s: float) -> Any:
    async def main() -> Any:
        async with AsyncClient(url, CREDENTIAL, timeout_s=timeout_s) as client:
            return await call(client)

    return asyncio.run(main())


Run = Callable[..., Any]


@pytest.fixture(params=[blocking, asynchronous])
def run(request: pytest.FixtureRequest) -> Run:
    def go(url: str, call: Call, timeout_s: float = 5.0) -> Any:
        return request.param(url, call, timeout_s)

    return go


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orbit_sdk.client.exchange.EXCHANGE_TIMEOUT_S", 0.3)


SUBMIT: Call = lambda client: client.submit("work", {"n": 1})  # noqa: E731 - one call, both clients


def test_a_submission_is_what_the_server_reads(run: Run) -> None:
    with scripted_api(success(submitted(), 201)) as api:
        answer = run(
            api.url,
            lambda client: client.submit(
                "mail.send",
                b'{"exact": 1.10}',
                queue="mails",
                key="order-7",
                recovery_safety=RecoverySafety.RECONCILE_ONLY,
                priority=5,
                available_at=datetime(2030, 1, 1, tzinfo=UTC),
            ),
        )
        (seen,) = api.seen
    assert (answer.id, answer.state, answer.revision) == (TASK_ID, TaskState.WAITING, 1)
    assert (answer.key, answer.deduplicated) == ("order-7", False)
    assert (seen.method, seen.path) == ("POST", "/v1/tasks")
    assert seen.headers["idempotency-key"] == "order-7"
    assert seen.headers["authorization"] == f"Bearer {CREDENTIAL}"
    assert seen.headers["content-type"] == "application/json"
    body = decode_submit(seen.body)
    assert bytes(body.payload) == b'{"exact": 1.10}'
    assert (body.queue, body.handler, body.priority) == ("mails", "mail.send", 5)
    assert body.recovery_safety is RecoverySafety.RECONCILE_ONLY
    assert body.available_at == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "trouble",
    [
        Reply(cut=True),
        Reply(silent=True),
        failure(503, "unavailable"),
        failure(429, "rate_limited"),
        Reply(502, b"<html>bad gateway</html>"),
        Reply(504, b""),
    ],
    ids=["cut", "silent", "503", "429", "502", "504"],
)
def test_passing_trouble_is_retried_with_the_same_key_and_bytes(run: Run, trouble: Reply) -> None:
    known = success(submitted(deduplicated=True))
    with scripted_api(trouble, trouble, known) as api:
        answer = run(api.url, SUBMIT)
    assert answer.deduplicated
    assert len(api.seen) == 3
    assert len({seen.headers["idempotency-key"] for seen in api.seen}) == 1
    assert len({seen.body for seen in api.seen}) == 1


def test_the_key_outlives_the_failure(run: Run) -> None:
    with (
        scripted_api(failure(503, "unavailable")) as api,
        pytest.raises(errors.Unavailable) as caught,
    ):
        run(api.url, SUBMIT, 0.6)
    assert caught.value.retryable
    assert {seen.headers["idempotency-key"] for seen in api.seen} == {
        caught.value.details["idempotency_key"]
    }
    assert len(api.seen) == caught.value.details["tries"]


def test_nobody_listening_is_unavailable_after_the_deadline(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(errors.Unavailable) as caught:
        run(f"http://127.0.0.1:{port}", SUBMIT, 0.4)
    assert caught.value.code == "unreachable"
    assert caught.value.status is None


def test_a_retry_after_beyond_the_deadline_gives_up_at_once(run: Run) -> None:
    wait_long = failure(429, "rate_limited", {"Retry-After": "60"})
    with scripted_api(wait_long) as api, pytest.raises(errors.RateLimited):
        run(api.url, SUBMIT)
    assert len(api.seen) == 1


def test_a_retry_after_is_honoured(run: Run) -> None:
    with scripted_api(
        failure(503, "unavailable", {"Retry-After": "1"}), success(submitted())
    ) as api:
        began = datetime.now(UTC)
        run(api.url, SUBMIT)
        assert (datetime.now(UTC) - began).total_seconds() >= 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "bad_request", errors.BadRequest),
        (401, "unauthenticated", errors.Unauthorized),
        (403, "forbidden", errors.Forbidden),
        (404, "queue_not_found", errors.NotFound),
        (405, "method_not_allowed", errors.BadRequest),
        (409, "idempotency_conflict", errors.Conflict),
        (413, "payload_too_large", errors.BadRequest),
        (415, "unsupported_media_type", errors.BadRequest),
        (422, "deadline_order", errors.ValidationFailed),
        (418, "teapot", errors.BadRequest),
        (500, "internal", errors.ServerError),
    ],
)
def test_a_refusal_is_raised_once_as_its_class(
    run: Run, status: int, code: str, kind: type[errors.OrbitError]
) -> None:
    with scripted_api(failure(status, code)) as api, pytest.raises(kind) as caught:
        run(api.url, SUBMIT)
    error = caught.value
    assert type(error) is kind
    assert (error.code, error.status, error.request_id) == (code, status, "r" * 32)
    assert error.details["field"] == "x"
    assert not error.retryable
    assert len(api.seen) == 1


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"data":{"id":1}}', b'{"data":null}', b"\xff"])
def test_an_answer_that_cannot_be_read_is_no_success(run: Run, body: bytes) -> None:
    with scripted_api(Reply(200, body)) as api, pytest.raises(errors.ServerError) as caught:
        run(api.url, SUBMIT)
    assert caught.value.code == "bad_answer"


def test_an_unknown_state_is_no_success(run: Run) -> None:
    with scripted_api(success(task("BLESSED"))) as api, pytest.raises(errors.ServerError):
        run(api.url, lambda client: client.get(TASK_ID))


def test_a_task_is_read_whole_and_future_fields_are_skipped(run: Run) -> None:
    done = task("SUCCEEDED", result={"a": [1]}, completed_at="2030-01-01T00:00:01Z")
    with scripted_api(success(done)) as api:
        found = run(api.url, lambda client: client.get(TASK_ID))
    assert api.seen[0].path == f"/v1/tasks/{TASK_ID}"
    assert found.revision == 18_446_744_073_709_551_615
    assert found.result == {"a": [1]}
    assert found.completed_at == datetime(2030, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert found.settled


def test_an_id_cannot_reach_another_path(run: Run) -> None:
    with scripted_api(failure(404, "not_found")) as api, pytest.raises(errors.NotFound):
        run(api.url, lambda client: client.get("../queues?x=#"))
    assert api.seen[0].path == "/v1/tasks/..%2Fqueues%3Fx%3D%23"


def test_waiting_goes_on_through_trouble_until_the_task_has_settled(run: Run) -> None:
    script = [success(task()), failure(503, "unavailable"), success(task("RUNNING"))]
    with scripted_api(*script, success(task("NEEDS_REVIEW"))) as api:
        found = run(api.url, lambda client: client.wait(TASK_ID, 10))
    assert found.state is TaskState.NEEDS_REVIEW
    assert len(api.seen) == 4


def test_waiting_ends_with_its_time(run: Run) -> None:
    with scripted_api(success(task("RUNNING"))) as api, pytest.raises(errors.WaitTimeout) as caught:
        run(api.url, lambda client: client.wait(TASK_ID, 0.3))
    assert caught.value.details["state"] == "RUNNING"
    assert 2 <= len(api.seen) <= 5


def test_attempts_and_queues_are_read_page_by_page(run: Run) -> None:
    attempt = {"id": "d" * 32, "epoch": "1", "state": "FAILED", "error_code": "x", "result": {}}
    first = {"items": [attempt], "next_cursor": "c 1"}
    second = {"items": [{**attempt, "epoch": "2", "state": "RUNNING"}], "next_cursor": None}
    with scripted_api(success(first), success(second)) as api:
        attempts = run(api.url, lambda client: client.attempts(TASK_ID))
    assert [found.epoch for found in attempts] == [1, 2]
    assert api.seen[1].path.endswith("cursor=c+1")
    queue = {"id": "c" * 32, "name": "default", "paused": False}
    with scripted_api(
        success({"items": [queue], "next_cursor": "x"}), success({"items": [], "next_cursor": None})
    ) as api:
        queues = run(api.url, lambda client: client.queues())
    assert [found.name for found in queues] == ["default"]


def test_creating_a_queue_is_not_repeated_when_it_may_have_been_done(run: Run) -> None:
    with scripted_api(Reply(cut=True)) as api, pytest.raises(errors.Unavailable):
        run(api.url, lambda client: client.create_queue("q"))
    assert len(api.seen) == 1
    made = success({"id": "c" * 32, "name": "q"}, 201)
    with scripted_api(failure(503, "unavailable"), made) as api:
        assert run(api.url, lambda client: client.create_queue("q")).name == "q"
    assert len(api.seen) == 2


# Batches


def batch_answer(count: int, **changed: object) -> Reply:
    items = [{"index": i, "status": 201, **submitted(f"{i:032x}")} for i in range(count)]
    for index, item in changed.items():
        items[int(index.removeprefix("at_"))] = item  # type: ignore[assignment]
    return success({"results": items})


def many(count: int, payload: object = 1) -> list[Submission]:
    return [Submission(handler="work", payload=payload, key=f"k{i}") for i in range(count)]


def test_a_long_batch_is_cut_and_its_results_stay_in_order(run: Run) -> None:
    with scripted_api(batch_answer(1000), batch_answer(1000), batch_answer(5)) as api:
        results = run(api.url, lambda client: client.submit_batch(many(2005)))
    assert [len(seen.json()["items"]) for seen in api.seen] == [1000, 1000, 5]
    assert [result.index for result in results] == list(range(2005))
    assert [result.key for result in results] == [f"k{i}" for i in range(2005)]
    last = [decode_batch_item(orjson.dumps(item)) for item in api.seen[2].json()["items"]]
    assert [item.submission_key for item in last] == [f"k{i}" for i in range(2000, 2005)]


def test_a_heavy_batch_is_cut_by_size(run: Run) -> None:
    with scripted_api(batch_answer(63), batch_answer(63), batch_answer(4)) as api:
        results = run(api.url, lambda client: client.submit_batch(many(130, "x" * 262_000)), 20.0)
    assert len(results) == 130
    assert [len(seen.json()["items"]) for seen in api.seen] == [63, 63, 4]
    assert all(len(seen.body) <= 16 * 1024 * 1024 for seen in api.seen)


def test_a_bad_item_is_its_own_error(run: Run) -> None:
    bad = {"index": 1, "status": 409, "error": {"code": "idempotency_conflict", "message": "m"}}
    with scripted_api(batch_answer(3, at_1=bad)) as api:
        results = run(api.url, lambda client: client.submit_batch(many(3)))
    assert [result.submitted is not None for result in results] == [True, False, True]
    assert isinstance(results[1].error, errors.Conflict)


def test_a_request_that_fails_gives_its_items_and_the_later_ones_the_error(run: Run) -> None:
    with scripted_api(batch_answer(1000), failure(503, "unavailable")) as api:
        results = run(api.url, lambda client: client.submit_batch(many(2500)), 0.5)
    assert all(result.submitted for result in results[:1000])
    assert all(isinstance(result.error, errors.Unavailable) for result in results[1000:])
    assert [result.index for result in results] == list(range(2500))
    assert len({seen.body for seen in api.seen[1:]}) == 1


def test_a_first_request_that_is_refused_raises(run: Run) -> None:
    with (
        scripted_api(failure(401, "unauthenticated")) as api,
        pytest.raises(errors.Unauthorized),
    ):
        run(api.url, lambda client: client.submit_batch(many(2500)))
    assert len(api.seen) == 1


def test_a_batch_answer_that_does_not_match_is_no_success(run: Run) -> None:
    with scripted_api(batch_answer(2)) as api:
        results = run(api.url, lambda client: client.submit_batch(many(3)))
    assert [result.error.code for result in results if result.error] == ["bad_answer"] * 3


def test_an_empty_batch_asks_nothing(run: Run) -> None:
    with scripted_api(batch_answer(0)) as api:
        assert run(api.url, lambda client: client.submit_batch([])) == []
    assert not api.seen


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (None, "invalid_payload"),
        (b"null", "invalid_payload"),
        (b'{"a":1,"a":2}', "invalid_payload"),
        (b"{", "invalid_payload"),
        ({"f": object()}, "invalid_payload"),
        ("\ud800", "invalid_payload"),
        ("x" * 300_000, "payload_too_large"),
    ],
)
def test_a_payload_that_cannot_travel_is_refused_before_anything_is_sent(
    run: Run, payload: object, code: str
) -> None:
    good = Submission(handler="work", payload=1)
    bad = Submission(handler="work", payload=payload)
    with scripted_api(success(submitted())) as api:
        with pytest.raises(errors.BadRequest) as caught:
            run(api.url, lambda client: client.submit("work", payload))
        assert caught.value.code == code
        with pytest.raises(errors.BadRequest):
            run(api.url, lambda client: client.submit_batch([good, bad]))
    assert not api.seen


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x/?a=1", "127.0.0.1:8080"])
def test_an_address_without_sense_is_said_at_once(url: str) -> None:
    if url:
        with pytest.raises(errors.BadRequest, match="not a cluster URL"):
            Client(url, CREDENTIAL)
    else:
        Client(url, CREDENTIAL).close()


@pytest.mark.parametrize(
    "credential", ["", "orbit_x", CREDENTIAL[:-1], f"{CREDENTIAL}\n{CREDENTIAL}"]
)
def test_a_credential_without_the_shape_of_one_is_never_shown(credential: str) -> None:
    with pytest.raises(errors.Unauthorized) as caught:
        Client("http://127.0.0.1:1", credential)
    assert not credential or credential not in str(caught.value)
