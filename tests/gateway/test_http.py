"""The HTTP API on real stores: envelope, permission, bodies, idempotency, batches, pages."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest

from orbit_sdk.protocol.limits import BATCH_ITEMS_MAX, HTTP_BODY_BYTES_MAX
from store.pool import Pools
from tests.gateway.harness import App, Gateway, ids, make_app, submission, submit


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, whose envelope is checked (R-100)."""
    body = answer.json()
    assert set(body) == {"request_id", "error"}, body
    assert set(body["error"]) == {"code", "message", "details"}
    assert answer.headers["x-request-id"] == body["request_id"]
    return answer.status_code, body["error"]["code"]


# --- envelope and router -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", (404, "not_found")),
        ("GET", "/v1/nothing", (404, "not_found")),
        ("GET", "/v1/tasks/", (404, "not_found")),
        ("DELETE", "/v1/tasks", (405, "method_not_allowed")),
        ("PUT", "/v1/queues/mail", (405, "method_not_allowed")),
        ("POST", "/health/live", (405, "method_not_allowed")),
    ],
)
async def test_unknown_paths_and_methods_answer_in_the_envelope(
    http: httpx.AsyncClient, method: str, path: str, expected: tuple[int, str]
) -> None:
    assert error_of(await http.request(method, path)) == expected


async def test_health_needs_no_credential_and_metrics_hold_no_secret(
    gateway: Gateway, http: httpx.AsyncClient, app: App
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as anyone:
        assert (await anyone.get("/health/live")).json()["data"] == {"live": True}
        ready = (await anyone.get("/health/ready")).json()["data"]
        assert ready == {"ready": True, "degraded": False}
        await submit(http)
        text = (await anyone.get("/metrics")).text
    assert 'orbit_gateway_commands_total{kind="submit"} 1.0' in text
    assert app.credential not in text
    assert app.namespace_id not in text


async def test_openapi_names_every_path(http: httpx.AsyncClient) -> None:
    """R-051."""
    page = (await http.get("/openapi.json")).json()
    assert {"/v1/tasks", "/v1/tasks:batchSubmit", "/v1/tasks/{task_id}"} <= set(page["paths"])
    schemas = page["components"]["schemas"]
    assert set(schemas["SubmitBody"]["required"]) >= {"queue", "handler", "payload"}
    referred = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(page)))
    assert referred
    assert referred <= set(schemas)


# --- permission --------------------------------------------------------------------------------


REQUESTS = [
    ("POST", "/v1/tasks", "submit"),
    ("POST", "/v1/tasks:batchSubmit", "submit"),
    ("GET", f"/v1/tasks/{'0' * 32}", "read"),
    ("GET", f"/v1/tasks/{'0' * 32}/attempts", "read"),
    ("GET", "/v1/queues", "read or work"),
    ("GET", "/v1/queues/mail", "read or work"),
    ("POST", "/v1/queues", "manage"),
]


@pytest.mark.parametrize(("method", "path", "scope"), REQUESTS)
async def test_each_request_needs_a_credential_and_its_scope(
    gateway: Gateway, pools: Pools, method: str, path: str, scope: str
) -> None:
    """R-054, R-104: permission comes before anything in the request is looked at."""
    others = tuple({"submit", "read", "work", "manage"} - {*scope.split(" or ")})
    limited = await make_app(pools, name="limited", scopes=others)
    async with httpx.AsyncClient(base_url=gateway.url) as client:
        assert error_of(await client.request(method, path)) == (401, "unauthenticated")
        answer = await client.request(method, path, headers=limited.headers)
        assert error_of(answer) == (403, "forbidden")


@pytest.mark.parametrize("scope", ["read", "work"])
async def test_queues_are_looked_up_to_read_and_to_work(
    gateway: Gateway, pools: Pools, scope: str
) -> None:
    """And nothing else is permitted with it."""
    app = await make_app(pools, name="looker", scopes=(scope,))
    async with httpx.AsyncClient(base_url=gateway.url, headers=app.headers) as client:
        one = (await client.get("/v1/queues/mail")).json()["data"]
        assert one["name"] == "mail"
        assert (await client.get("/v1/queues")).json()["data"]["items"] == [one]
        for method, path, needed in REQUESTS:
            if scope not in needed.split(" or "):
                assert error_of(await client.request(method, path)) == (403, "forbidden")


async def test_a_credential_bound_to_queues_reaches_no_other(
    gateway: Gateway, app: App, pools: Pools, http: httpx.AsyncClient
) -> None:
    created = (await http.post("/v1/queues", json={"name": "other"})).json()["data"]
    task = (await submit(http)).json()["data"]
    await pools.background.execute(
        "UPDATE credential SET queue_ids = ARRAY[$2::uuid] WHERE key_id = $1",
        app.key_id,
        created["id"],
    )
    gateway.node.credentials.forget()
    assert error_of(await submit(http)) == (403, "forbidden")
    assert error_of(await http.get(f"/v1/tasks/{task['id']}")) == (403, "forbidden")
    assert error_of(await http.get("/v1/queues/mail")) == (403, "forbidden")
    listed = (await http.get("/v1/queues")).json()["data"]["items"]
    assert [row["name"] for row in listed] == ["other"]
    assert (await submit(http, queue="other")).status_code == 201
    assert error_of(await http.post("/v1/queues", json={"name": "third"})) == (403, "forbidden")


async def test_another_namespaces_task_does_not_exist(
    gateway: Gateway, pools: Pools, http: httpx.AsyncClient
) -> None:
    """OP-47: 404, not 403."""
    task_id = (await submit(http)).json()["data"]["id"]
    other = await make_app(pools, name="other")
    async with httpx.AsyncClient(base_url=gateway.url, headers=other.headers) as stranger:
        for path in (f"/v1/tasks/{task_id}", f"/v1/tasks/{task_id}/attempts"):
            assert error_of(await stranger.get(path)) == (404, "not_found")
    assert error_of(await http.get(f"/v1/tasks/{'f' * 32}")) == (404, "not_found")
    assert error_of(await http.get("/v1/tasks/xyz")) == (404, "not_found")


# --- bodies ------------------------------------------------------------------------------------


async def test_a_submission_needs_one_proper_key(http: httpx.AsyncClient) -> None:
    """OP-41."""
    for key in ("", "a b", "ü", "x" * 129):
        headers: Any = [("Idempotency-Key", key.encode())]
        answer = await http.post("/v1/tasks", json=submission(), headers=headers)
        assert error_of(answer) == (400, "key_required")
    assert error_of(await http.post("/v1/tasks", json=submission())) == (400, "key_required")
    twice: Any = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    answer = await http.post("/v1/tasks", json=submission(), headers=twice)
    assert error_of(answer) == (400, "key_required")
    assert (await submit(http, key="x" * 128)).status_code == 201


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_only_json_is_read(http: httpx.AsyncClient, media_type: str) -> None:
    headers = {"Idempotency-Key": "a", "Content-Type": media_type}
    answer = await http.post("/v1/tasks", content=b"{}", headers=headers)
    assert error_of(answer) == (415, "unsupported_media_type")


async def test_a_body_that_is_too_large_is_refused_while_it_is_read(
    http: httpx.AsyncClient, gateway: Gateway, app: App
) -> None:
    """R-053: by its declared length at once, by its real length otherwise; not read to the end."""
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    answer = await http.post("/v1/tasks", content=b" " * (HTTP_BODY_BYTES_MAX + 1), headers=headers)
    assert error_of(answer) == (413, "payload_too_large")

    async def endless() -> Any:
        while True:
            yield b" " * 65_536

    async with asyncio.timeout(10):
        try:
            answer = await http.post("/v1/tasks", content=endless(), headers=headers)
        except (httpx.WriteError, httpx.ReadError):
            return  # the answer came while the body was still being sent
    assert error_of(answer) == (413, "payload_too_large")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"priority": "high"}, (400, "bad_request")),
        ({"unknown": 1}, (400, "bad_request")),
        ({"payload": None}, (400, "bad_request")),
        ({"handler": "-"}, (422, "validation_failed")),
        ({"priority": 101}, (422, "validation_failed")),
        ({"available_at": "2026-13-01T00:00:00Z"}, (422, "validation_failed")),
        (
            {"available_at": "2026-01-02T00:00:00Z", "deadline_at": "2026-01-01T00:00:00Z"},
            (422, "deadline_order"),
        ),
        ({"deadline_at": "2020-01-01T00:00:00Z"}, (422, "deadline_order")),
        ({"business_key": "a\0b"}, (422, "validation_failed")),
    ],
)
async def test_shape_is_400_and_meaning_is_422(
    http: httpx.AsyncClient, change: dict[str, object], expected: tuple[int, str]
) -> None:
    """OP-47."""
    assert error_of(await submit(http, **change)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "payload",
    ["NaN", "-Infinity", '{"a":1,"a":2}', '"\\ud800"', "[" * 200 + "]" * 200, "1e5000", "01"],
)
async def test_hostile_json_is_refused_once_and_for_good(
    http: httpx.AsyncClient, payload: str
) -> None:
    """INV-32, B-45 to B-47."""
    text = json.dumps(submission()).replace('{"to": "a@b.c"}', payload)
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    answer = await http.post("/v1/tasks", content=text.encode(), headers=headers)
    assert answer.status_code in (400, 422)
    error_of(answer)


async def test_what_was_accepted_is_read_back_equal(http: httpx.AsyncClient) -> None:
    """INV-33: a NUL escape, a large number, odd spelling: the bytes as accepted."""
    spelled = '{"z": 1.50, "a":"\\u0000 é", "n": 123456789012345678901234567890, "e": 1e2}'
    text = json.dumps(submission(business_key="k")).replace('{"to": "a@b.c"}', spelled)
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    answer = await http.post("/v1/tasks", content=text.encode(), headers=headers)
    assert answer.status_code == 201, answer.text
    read = await http.get(f"/v1/tasks/{answer.json()['data']['id']}")
    assert spelled in read.text
    assert read.json()["data"]["state"] == "WAITING"


# --- idempotency -------------------------------------------------------------------------------


async def test_the_same_key_and_meaning_is_the_same_task(http: httpx.AsyncClient) -> None:
    """R-090 to R-092, B-43: spelling, defaults and trace ids are no part of the meaning."""
    first = await submit(http, key="one")
    assert first.json()["data"]["deduplicated"] is False
    again = await submit(http, key="one", priority=0)
    assert (again.status_code, again.json()["data"]["deduplicated"]) == (200, True)
    assert again.json()["data"]["id"] == first.json()["data"]["id"]
    other = await submit(http, key="one", payload={"to": "x@y.z"})
    assert error_of(other) == (409, "idempotency_conflict")


async def test_one_key_posted_twenty_times_at_once_is_one_task(http: httpx.AsyncClient) -> None:
    """INV-29, B-42."""
    answers = await asyncio.gather(*(submit(http, key="one") for _ in range(20)))
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len({answer.json()["data"]["id"] for answer in answers}) == 1


async def test_an_unknown_queue(http: httpx.AsyncClient) -> None:
    assert error_of(await submit(http, queue="nowhere")) == (404, "queue_not_found")
    assert error_of(await submit(http, queue=ids.next())) == (404, "queue_not_found")


async def test_a_queue_may_be_named_by_its_id(http: httpx.AsyncClient, app: App) -> None:
    answer = await submit(http, queue=app.queue_id)
    assert answer.status_code == 201
    task = (await http.get(f"/v1/tasks/{answer.json()['data']['id']}")).json()["data"]
    assert task["queue_id"] == app.queue_id


# --- batches -----------------------------------------------------------------------------------


async def batch(http: httpx.AsyncClient, items: list[Any]) -> list[dict[str, Any]]:
    answer = await http.post("/v1/tasks:batchSubmit", json={"items": items})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()["data"]["results"]
    assert [item["index"] for item in results] == list(range(len(items)))
    return results


@pytest.mark.parametrize("id_first", [False, True], ids=["name first", "id first"])
@pytest.mark.parametrize("sends", ["single", "batch", "one batch"])
async def test_a_queue_means_the_same_by_name_and_by_id(
    http: httpx.AsyncClient, app: App, id_first: bool, sends: str
) -> None:
    """OP-41, OP-42: a repeat that spells its queue otherwise is a repeat."""
    names = [app.queue, app.queue_id]
    first, second = reversed(names) if id_first else names
    items = [submission(queue=name) | {"submission_key": "k"} for name in (first, second)]
    if sends == "single":
        answers = [await submit(http, "k", first), await submit(http, "k", second)]
        statuses = [answer.status_code for answer in answers]
        ids = {answer.json()["data"]["id"] for answer in answers}
    else:
        together = sends == "one batch"
        batches = [items] if together else [[item] for item in items]
        results = [result for some in batches for result in await batch(http, some)]
        statuses = [result["status"] for result in results]
        ids = {result["id"] for result in results}
    assert statuses == [201, 200]
    assert len(ids) == 1


async def test_the_same_key_for_another_queue_is_a_conflict(
    http: httpx.AsyncClient, app: App
) -> None:
    made = await http.post("/v1/queues", json={"name": "other"})
    assert made.status_code in (200, 201), made.text
    assert (await submit(http, "k", app.queue)).status_code == 201
    assert error_of(await submit(http, "k", "other")) == (409, "idempotency_conflict")


async def test_a_batch_is_judged_item_by_item(http: httpx.AsyncClient) -> None:
    """R-108, OP-45."""
    results = await batch(
        http,
        [
            submission() | {"submission_key": "a"},
            submission() | {"submission_key": "a"},
            submission(payload=1) | {"submission_key": "a"},
            submission(queue="nowhere") | {"submission_key": "b"},
            submission(),
            submission(priority=1000) | {"submission_key": "c"},
            submission(deadline_at="2020-01-01T00:00:00Z") | {"submission_key": "d"},
            17,
            submission(handler="other") | {"submission_key": "e"},
        ],
    )
    assert [item["status"] for item in results] == [201, 200, 409, 404, 400, 422, 422, 400, 201]
    assert results[1]["id"] == results[0]["id"]
    assert results[1]["deduplicated"] is True
    assert results[2]["error"]["code"] == "idempotency_conflict"
    assert "error" not in results[8]


async def test_single_and_batch_share_one_key_space(http: httpx.AsyncClient) -> None:
    """R-093."""
    first = (await submit(http, key="a")).json()["data"]
    (result,) = await batch(http, [submission() | {"submission_key": "a"}])
    assert (result["status"], result["id"]) == (200, first["id"])


async def test_a_large_batch_is_accepted_whole(http: httpx.AsyncClient) -> None:
    items = [submission() | {"submission_key": str(n)} for n in range(BATCH_ITEMS_MAX)]
    results = await batch(http, items)
    assert {item["status"] for item in results} == {201}
    assert len({item["id"] for item in results}) == BATCH_ITEMS_MAX


@pytest.mark.parametrize("body", ["{}", '{"items":[]}', '{"items":[{}],"x":1}', "[]", "{"])
async def test_a_broken_top_level_accepts_nothing(http: httpx.AsyncClient, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await http.post("/v1/tasks:batchSubmit", content=body.encode(), headers=headers)
    assert error_of(answer) == (400, "bad_request")


# --- queues and pages --------------------------------------------------------------------------


async def test_queues_are_made_read_and_listed_page_by_page(http: httpx.AsyncClient) -> None:
    for name in ("zeta", "alpha", "beta"):
        answer = await http.post("/v1/queues", json={"name": name})
        assert (answer.status_code, answer.json()["data"]["name"]) == (201, name)
    assert error_of(await http.post("/v1/queues", json={"name": "zeta"})) == (409, "state_conflict")
    queue = (await http.get("/v1/queues/zeta")).json()["data"]
    assert (await http.get(f"/v1/queues/{queue['id']}")).json()["data"] == queue
    names, cursor = [], None
    while True:
        query = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = (await http.get("/v1/queues", params=query)).json()["data"]
        names += [row["name"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert names == ["alpha", "beta", "mail", "zeta"]


@pytest.mark.parametrize("body", [{}, {"name": 1}, {"name": "a", "b": 1}, []])
async def test_a_queue_needs_a_name(http: httpx.AsyncClient, body: Any) -> None:
    assert error_of(await http.post("/v1/queues", json=body)) == (400, "bad_request")


async def test_a_queue_name_is_a_token(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/queues", json={"name": "a b"})
    assert error_of(answer) == (422, "validation_failed")
    assert error_of(await http.get("/v1/queues/a%20b")) == (404, "queue_not_found")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=0", (422, "validation_failed")),
        ("limit=201", (422, "validation_failed")),
        ("limit=x", (400, "bad_request")),
        ("cursor=%21", (400, "bad_request")),
        ("cursor=", (400, "bad_request")),
        ("state=x", (400, "bad_request")),
        ("limit=1&limit=2", (400, "bad_request")),
    ],
)
async def test_odd_queries_are_refused(
    http: httpx.AsyncClient, query: str, expected: tuple[int, str]
) -> None:
    """OP-46."""
    task_id = (await submit(http)).json()["data"]["id"]
    for path in ("/v1/queues", f"/v1/tasks/{task_id}/attempts"):
        assert error_of(await http.get(f"{path}?{query}")) == expected
