"""Renewals and reports past a bad socket, over HTTP (R-125, R-151, R-154, OP-21).

It is the same operation as a frame's; the instance proves it instead of a session. Where the server
does not offer it, the checks are skipped.
"""

from orbit_sdk.conformance.batch import item
from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import Skipped, check, expect, expect_equal
from orbit_sdk.conformance.peer import Frame, Instance, instant, new_id, new_secret

DONE: Frame = {"outcome": "SUCCEEDED", "result": "done"}


async def relay(bench: Bench, verb: str, instance: Instance, *items: Frame) -> list[Frame]:
    """One request; its results, one an item, in order."""
    path = f"/v1/worker/attempts:{verb}"
    said = {"instance_id": instance.id, "instance_secret": instance.secret, "items": items}
    answer = await bench.call("POST", path, body=said)
    if answer.status in (404, 405):
        raise Skipped(f"the server does not offer {path}")
    expect_equal(answer.status, 200, "the status", answer.body)
    results: list[Frame] = answer.data["results"]
    expect_equal([result["index"] for result in results], list(range(len(items))), "the indexes")
    return results


@check
async def renewal_past_the_socket(bench: Bench) -> None:
    """R-125, R-151: a renewal over HTTP extends the lease, while no session of the instance lives.

    A running attempt, its connection closed; a renewal; its new end, and a resume and a finish.
    """
    peer, attempt, started = await bench.running()
    await peer.socket.close()
    (renewed,) = await relay(bench, "renew", peer.instance, item(attempt))
    expect_equal(renewed["status"], 200, "the status of the item", renewed)
    expect_equal(renewed["receipt"]["disposition"], "APPLIED", "the disposition", renewed)
    ends = instant(renewed["lease"]["lease_until"])
    expect(ends > instant(started["lease"]["lease_until"]), "it was not extended", renewed)
    (row,) = await bench.attempts(attempt.task["id"])
    expect_equal(instant(row["lease_until"]), ends, "the persisted end", row)
    again = await bench.worker(1, peer.instance)
    expect_equal((await again.resume(attempt))["active"], True, "the lease's active")
    await again.finish(attempt)


@check
async def report_past_the_socket(bench: Bench) -> None:
    """R-143, OP-21: a report over HTTP and its frame are one operation, with one receipt.

    A finish over HTTP, then over a new connection under the same message id.
    """
    peer, attempt, _ = await bench.running()
    await peer.socket.close()
    message = new_id()
    (first,) = await relay(bench, "finish", peer.instance, item(attempt, message, **DONE))
    receipt = first["receipt"]
    expect_equal((receipt["disposition"], receipt["task_state"]), ("APPLIED", "SUCCEEDED"), "it")
    again = await (await bench.worker(1, peer.instance)).finish(attempt, message_id=message)
    expect_equal(again["receipt"], receipt, "the receipt", again)
    expect_equal(again["deduplicated"], True, "deduplicated", again)


@check
async def relayed_items_are_judged_alone(bench: Bench) -> None:
    """R-125, R-172: each item is judged alone: one without proof, or of another form, spoils none.

    A right one among one with a wrong secret, an unknown one, and one with a field too many.
    """
    peer, attempt, _ = await bench.running()
    results = await relay(
        bench,
        "renew",
        peer.instance,
        item(attempt, lease_secret=new_secret()),
        item(attempt),
        item(attempt, attempt_id=new_id()),
        {**item(attempt), "more": 1},
    )
    statuses = [result["status"] for result in results]
    expect_equal(statuses, [404, 200, 404, 400], "the statuses of the items", results)
    for result in (results[0], results[2]):
        expect_equal(result["error"]["code"], "attempt_not_found", "the error's code", result)


@check
async def another_instance_relays_nothing(bench: Bench) -> None:
    """R-115: the whole proof of an attempt in another instance's hands is attempt_not_found.

    A renewal and a report by another instance, and by this one with another secret of its own.
    """
    peer, attempt, _ = await bench.running()
    stranger = (await bench.worker()).instance
    for instance in (stranger, Instance(peer.instance.id, new_secret())):
        for verb, said in (("renew", item(attempt)), ("finish", item(attempt, **DONE))):
            (result,) = await relay(bench, verb, instance, said)
            expect_equal(result["status"], 404, "the status of the item", result)
            expect_equal(result["error"]["code"], "attempt_not_found", "the code", result)
    finished = await peer.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
