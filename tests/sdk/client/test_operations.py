"""Operations through both clients against a real HTTP server: what is sent, and sent again."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from orbit_sdk import errors
from orbit_sdk.protocol.operations import decode_cancel, decode_gate, decode_resolve, decode_retry
from orbit_sdk.protocol.states import TaskState
from tests.sdk.client.scripted_api import TASK_ID, Reply, failure, scripted_api, success, task
from tests.sdk.client.test_clients import Call, asynchronous, blocking

Run = Callable[..., Any]


@pytest.fixture(params=[blocking, asynchronous])
def run(request: pytest.FixtureRequest) -> Run:
    def go(url: str, call: Call, timeout_s: float = 5.0) -> Any:
        return request.param(url, call, timeout_s)

    return go


def changed(state: str = "CANCELLED", status: int = 200) -> Reply:
    data = {"id": TASK_ID, "state": state, "revision": "5", "deduplicated": False}
    return success(data, status)


def queue(version: int, paused: bool) -> Reply:
    return success(
        {
            "id": "c" * 32,
            "name": "mail",
            "paused": paused,
            "control_version": str(version),
            "deduplicated": False,
        }
    )


@pytest.mark.parametrize(("state", "status"), [("CANCELLED", 200), ("RUNNING", 202)])
def test_a_cancel_says_why_and_what_became_of_it(run: Run, state: str, status: int) -> None:
    with scripted_api(changed(state, status)) as api:
        answer = run(api.url, lambda client: client.cancel(TASK_ID, "sold out"))
        (seen,) = api.seen
    assert (answer.state, answer.revision, answer.deduplicated) == (TaskState(state), 5, False)
    assert (seen.method, seen.path) == ("POST", f"/v1/tasks/{TASK_ID}:cancel")
    assert seen.headers["idempotency-key"] == answer.key
    body = decode_cancel(seen.body)
    assert (body.reason, body.expected_revision) == ("sold out", None)


def test_a_retry_is_decided_on_the_task_as_it_is(run: Run) -> None:
    deadline = datetime(2030, 1, 2, tzinfo=UTC)
    with scripted_api(success(task("FAILED", revision="4")), changed("WAITING")) as api:
        answer = run(
            api.url, lambda client: client.retry(TASK_ID, "mail is back", deadline_at=deadline)
        )
        asked, seen = api.seen
    assert answer.state is TaskState.WAITING
    assert (asked.method, asked.path) == ("GET", f"/v1/tasks/{TASK_ID}")
    assert seen.path == f"/v1/tasks/{TASK_ID}:retry"
    body = decode_retry(seen.body)
    assert (body.expected_revision, body.deadline_at) == ("4", deadline)


def test_a_revision_that_was_seen_is_not_asked_for(run: Run) -> None:
    with scripted_api(changed("SUCCEEDED")) as api:
        run(
            api.url,
            lambda client: client.resolve(
                TASK_ID, "SUCCEEDED", "seen", {"ref": 7}, expected_revision=4, key="r-7"
            ),
        )
        (seen,) = api.seen
    assert seen.headers["idempotency-key"] == "r-7"
    body = decode_resolve(seen.body)
    assert (body.outcome, body.expected_revision) == ("SUCCEEDED", "4")
    assert bytes(body.evidence) == b'{"ref":7}'


def test_a_queue_is_paused_and_resumed_at_the_version_that_is(run: Run) -> None:
    with scripted_api(queue(3, False), queue(4, True), queue(5, False)) as api:
        paused = run(api.url, lambda client: client.pause_queue("mail", "incident"))
        resumed = run(
            api.url, lambda client: client.resume_queue("mail", "over", expected_version=4)
        )
        _, pause, resume = api.seen
    assert (paused.paused, paused.control_version, resumed.paused) == (True, 4, False)
    assert (pause.path, resume.path) == ("/v1/queues/mail:pause", "/v1/queues/mail:resume")
    versions = [decode_gate(seen.body).expected_version for seen in (pause, resume)]
    assert versions == ["3", "4"]


CALLS: list[Call] = [
    lambda client: client.cancel(TASK_ID, "x"),
    lambda client: client.retry(TASK_ID, "x", expected_revision=4),
    lambda client: client.resolve(TASK_ID, "FAILED", "x", {}, expected_revision=4),
    lambda client: client.pause_queue("mail", "x", expected_version=4),
    lambda client: client.resume_queue("mail", "x", expected_version=4),
]


@pytest.mark.parametrize("call", CALLS)
def test_passing_trouble_is_repeated_with_the_same_key_and_bytes(run: Run, call: Call) -> None:
    both = {"id": TASK_ID, "state": "WAITING", "revision": "5", "deduplicated": True}
    done = success({**both, "name": "mail", "paused": True, "control_version": "2"})
    with scripted_api(Reply(cut=True), failure(503, "unavailable"), done) as api:
        assert run(api.url, call).deduplicated
    assert len(api.seen) == 3
    assert len({(seen.headers["idempotency-key"], seen.body) for seen in api.seen}) == 1


@pytest.mark.parametrize("call", CALLS[1:])
def test_a_failure_carries_what_a_repeat_needs(run: Run, call: Call) -> None:
    with (
        scripted_api(failure(503, "unavailable")) as api,
        pytest.raises(errors.Unavailable) as caught,
    ):
        run(api.url, call, 0.3)
    assert caught.value.details["idempotency_key"] == api.seen[0].headers["idempotency-key"]
    assert caught.value.details["expected"] == "4"


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.retry(TASK_ID, "x", key="mine"),
        lambda client: client.resolve(TASK_ID, "FAILED", "x", {}, key="mine"),
        lambda client: client.pause_queue("mail", "x", key="mine"),
    ],
)
def test_an_own_key_needs_the_revision_that_it_stands_for(run: Run, call: Call) -> None:
    with scripted_api(changed()) as api, pytest.raises(errors.BadRequest) as caught:
        run(api.url, call)
    assert caught.value.code == "expected_needed"
    assert api.seen == []


def test_evidence_must_be_able_to_travel(run: Run) -> None:
    with scripted_api(changed()) as api:
        for evidence in (None, float("nan"), object()):
            with pytest.raises(errors.BadRequest):
                run(
                    api.url,
                    lambda client, evidence=evidence: client.resolve(
                        TASK_ID, "FAILED", "x", evidence, expected_revision=4
                    ),
                )
        assert api.seen == []


def test_a_refusal_is_a_conflict_and_is_not_repeated(run: Run) -> None:
    with (
        scripted_api(failure(409, "state_conflict")) as api,
        pytest.raises(errors.Conflict) as caught,
    ):
        run(api.url, CALLS[0])
    assert caught.value.code == "state_conflict"
    assert len(api.seen) == 1


def test_marks_of_a_stop_are_read(run: Run) -> None:
    marks = {
        "cause": "caller",
        "requested_at": "2030-01-01T00:00:00Z",
        "acknowledged_at": "2030-01-01T00:00:01Z",
        "forced_at": None,
        "finished_at": None,
    }
    attempt = {"id": TASK_ID, "epoch": "1", "state": "RUNNING", "cancel": marks}
    page = success({"items": [attempt], "next_cursor": None})
    with scripted_api(page) as api:
        (found,) = run(api.url, lambda client: client.attempts(TASK_ID))
    assert found.cancel is not None
    assert (found.cancel.cause, found.cancel.forced_at) == ("caller", None)
    assert orjson.loads(page.body)["data"]["items"][0]["cancel"] == marks
