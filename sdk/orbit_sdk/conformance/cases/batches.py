"""Batches: item by item, each with a key of its own (R-061, R-093, R-108, OP-45)."""

from orbit_sdk.conformance.bench import Answer, Bench, new_key
from orbit_sdk.conformance.checks import check_once, expect, expect_equal
from orbit_sdk.conformance.peer import Frame

ITEMS_MAX = 1_000


def item(bench: Bench, key: str | None = None, **changes: object) -> Frame:
    return {**bench.submission(**changes), "submission_key": key or new_key()}


async def post(bench: Bench, items: object) -> Answer:
    return await bench.call("POST", "/v1/tasks:batchSubmit", body={"items": items})


async def results_of(bench: Bench, items: list[object]) -> list[Frame]:
    """The results, one an item, each with its index and either an id or an error."""
    answer = await post(bench, items)
    expect_equal(answer.status, 200, "the status", answer.body)
    results: list[Frame] = answer.data["results"]
    expect_equal([result["index"] for result in results], list(range(len(items))), "the indexes")
    for result in results:
        expect(("id" in result) != ("error" in result), "an id or an error", result)
    return results


@check_once
async def items_are_judged_one_by_one(bench: Bench) -> None:
    """R-108, OP-45: one bad item spoils no other.

    Right items among an unknown queue, a bad priority, a missing key and a number.
    """
    without_key = bench.submission()
    results = await results_of(
        bench,
        [
            item(bench),
            item(bench, queue="no-such-queue"),
            item(bench),
            item(bench, priority=1_000),
            without_key,
            17,
            item(bench),
        ],
    )
    statuses = [result["status"] for result in results]
    expect_equal(statuses, [201, 404, 201, 422, 400, 400, 201], "the statuses", results)


@check_once
async def batch_again(bench: Bench) -> None:
    """R-108, R-091: a batch sent again names the same tasks.

    Three items twice.
    """
    items: list[object] = [item(bench) for _ in range(3)]
    first, again = await results_of(bench, items), await results_of(bench, items)
    ids = [result["id"] for result in first]
    expect_equal([result["id"] for result in again], ids, "the ids", again)
    expect_equal([result["status"] for result in again], [200] * 3, "the statuses", again)


@check_once
async def one_key_twice_in_a_batch(bench: Bench) -> None:
    """OP-45: of two items with one key the second is a repeat, or a 409 if it means another thing.

    One key three times, the third with another payload.
    """
    key = new_key()
    first = item(bench, key)
    results = await results_of(bench, [first, first, {**first, "payload": 2}])
    expect_equal([result["status"] for result in results], [201, 200, 409], "the statuses", results)
    expect_equal(results[1]["id"], results[0]["id"], "the id", results)


@check_once
async def single_and_batch_share_their_keys(bench: Bench) -> None:
    """R-093, R-094: Idempotency-Key and submission_key are one identity.

    A single submission, then the same as an item of a batch.
    """
    key, body = new_key(), bench.submission()
    single = await bench.post(body, key)
    (result,) = await results_of(bench, [{**body, "submission_key": key}])
    expect_equal((result["status"], result["id"]), (200, single.data["id"]), "the item", result)


@check_once
async def broken_top_level(bench: Bench) -> None:
    """OP-45: a broken top level is 400, and nothing is accepted.

    No items, an unknown field beside them, items that are no list, 1001 items.
    """
    key = new_key()
    whole = item(bench, key)
    broken: tuple[object, ...] = (
        {"items": []},
        {"items": [whole], "more": 1},
        {"items": whole},
        [whole],
    )
    for body in broken:
        (await bench.call("POST", "/v1/tasks:batchSubmit", body=body)).refused(400)
    (await post(bench, [whole] * (ITEMS_MAX + 1))).refused(400)
    (result,) = await results_of(bench, [whole])
    expect_equal(result["status"], 201, "the status of the first right one", result)


@check_once
async def batch_at_its_limit(bench: Bench) -> None:
    """R-061, R-053: a batch of 1000 items is accepted whole.

    1000 items of one handler, due far in the future and ended by their deadline.
    """
    due = bench.submission()["deadline_at"]
    items: list[object] = [item(bench, available_at=due) for _ in range(ITEMS_MAX)]
    results = await results_of(bench, items)
    statuses = {result["status"] for result in results}
    expect_equal(statuses, {201}, "the statuses")
    expect_equal(len({result["id"] for result in results}), ITEMS_MAX, "the number of ids")
