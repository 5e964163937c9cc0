"""Frames that are none: refused by name, counted, never ignored (R-009 to R-019, R-171, OP-08)."""

from collections.abc import Callable

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Frame, Peer, new_id, report, unwrapped

BODY: Frame = {"sequence": "1", "capacity": 1, "drain": False}
BAD_FRAMES_MAX = 8
VALUE_DEPTH_MAX = 62
"""A frame of v1 may be 64 deep, and one of v2, whose values lie in items, 66."""


async def refuses(peer: Peer, frame: Frame, text: str | None = None) -> None:
    """The frame must be answered bad_frame, tied to its message id, inside the session."""
    await peer.send_text(peer.text_of(frame) if text is None else text, frame)
    answer = await peer.answer(frame["message_id"])
    expect_equal(answer.get("error", {}).get("code"), "bad_frame", "the error's code", answer)


async def each_refused(bench: Bench, *changes: Callable[[Frame], None]) -> None:
    """A capacity frame with each of these changes; the session takes a right one afterwards."""
    peer = await bench.worker()
    for change in changes:
        frame = peer.frame("worker.capacity", dict(BODY))
        change(frame)
        await refuses(peer, frame)
    await peer.declare(2, 1)


async def spelled_wrong(bench: Bench, before: str, *afters: str) -> None:
    """A capacity frame with a part of its text replaced."""
    peer = await bench.worker()
    for after in afters:
        frame = peer.frame("worker.capacity", dict(BODY))
        text = peer.text_of(frame)
        expect(before in text, f"{before} is not in the frame")
        await refuses(peer, frame, text.replace(before, after))
    await peer.declare(2, 1)


@check
async def unknown_type(bench: Bench) -> None:
    """R-012, R-171, OP-08: an unknown type is bad_frame, never ignored.

    task.cancel, worker.drain, task.complete and an empty type; then a right frame.
    """
    kinds = ("task.cancel", "worker.drain", "task.complete", "")
    await each_refused(bench, *(lambda frame, kind=kind: frame.update(type=kind) for kind in kinds))


@check
async def frame_of_the_server(bench: Bench) -> None:
    """R-013: a frame of the other direction is bad_frame.

    A worker sends welcome, assign, ack and error.
    """
    kinds = ("worker.welcome", "task.assign", "ack", "error")
    await each_refused(bench, *(lambda frame, kind=kind: frame.update(type=kind) for kind in kinds))


@check
async def unknown_field(bench: Bench) -> None:
    """R-009: every protocol object refuses unknown fields.

    An unknown field at the top, in the body, and reply_to in a worker's frame.
    """
    await each_refused(
        bench,
        lambda frame: frame.update(more=1),
        lambda frame: frame["body"].update(more=1),
        lambda frame: frame.update(reply_to=new_id()),
    )


@check
async def missing_field(bench: Bench) -> None:
    """R-011, R-014: a frame without version, type, session or body is bad_frame.

    A frame without each of them, and a body without each of its fields.
    """

    def without(name: str) -> Callable[[Frame], None]:
        return lambda frame: frame.pop(name)

    def without_inside(name: str) -> Callable[[Frame], None]:
        return lambda frame: frame["body"].pop(name)

    await each_refused(
        bench,
        *(without(name) for name in ("protocol_version", "type", "session_id", "body")),
        *(without_inside(name) for name in BODY),
    )


@check
async def wrong_version(bench: Bench) -> None:
    """R-011, R-055: protocol_version is the text of the agreed version and nothing else.

    The other version, the number, and an empty text.
    """
    number = bench.version.number
    versions: tuple[object, ...] = ("2" if number == "1" else "1", int(number), "")
    await each_refused(
        bench, *(lambda frame, v=version: frame.update(protocol_version=v) for version in versions)
    )


@check
async def wrong_types(bench: Bench) -> None:
    """R-023: a field of another JSON type is bad_frame.

    capacity as a text, as true, as null; drain as 0; a body that is a list.
    """
    await each_refused(
        bench,
        *(lambda f, v=value: f["body"].update(capacity=v) for value in ("1", True, None, -1, 257)),
        lambda frame: frame["body"].update(drain=0),
        lambda frame: frame.update(body=[]),
    )


@check
async def session_id_of_another_form(bench: Bench) -> None:
    """R-001: an id is exactly 32 lowercase hexadecimal digits.

    session_id in capitals, too short, with a line feed at its end.
    """
    peer = await bench.worker()
    for text in ("A" * 32, "a" * 31, "a" * 32 + "\n"):
        await refuses(peer, peer.frame("worker.capacity", BODY, session_id=text))
    await peer.declare(2, 1)


@check
async def repeated_key(bench: Bench) -> None:
    """R-009, R-019: a JSON object with a repeated key is no frame.

    A key twice, and a key twice with one spelled by an escape.
    """
    await spelled_wrong(
        bench,
        '"capacity": 1',
        '"capacity": 1, "capacity": 1',
        '"capacity": 1, "c\\u0061pacity": 1',
    )


@check
async def integer_written_as_a_fraction(bench: Bench) -> None:
    """R-023, R-019: an integer is written as one.

    capacity as 1.0, 1e0 and -0.
    """
    await spelled_wrong(bench, '"capacity": 1', '"capacity": 1.0', '"capacity": 1e0')


@check
async def not_json(bench: Bench) -> None:
    """R-010, OP-08: a text that is not JSON and names no message ends the session with 1008.

    A text with NaN, then a torn frame, each on a connection of its own.
    """
    for text in ('{"message_id": NaN}', '{"protocol_version": "1", "type"', "", "[]"):
        peer = await bench.worker()
        await peer.send_text(text)
        await peer.fatal("bad_frame", 1008)


@check
async def nesting_has_a_limit(bench: Bench) -> None:
    """R-005, R-053: nesting is limited over the whole frame.

    A text of 100,000 opening brackets; it must be refused, and the server must live.
    """
    peer = await bench.worker()
    await peer.send_text("[" * 100_000)
    await peer.fatal("bad_frame", 1008)
    await bench.worker()


@check
async def nesting_leaves_room_for_values(bench: Bench) -> None:
    """R-005, R-035: a result may be nested as deep as the frame's limit leaves, in batches too.

    A result of 62 lists in each other is accepted, one of 63 is not.
    """
    peer = await bench.worker()
    for depth, wanted in ((VALUE_DEPTH_MAX, "ack"), (VALUE_DEPTH_MAX + 1, "error")):
        await bench.submit()
        attempt = await peer.assignment()
        await peer.start(attempt)
        frame = peer.frame("task.finish", report(attempt, "SUCCEEDED", "DEEP"))
        text = peer.text_of(frame).replace('"DEEP"', "[" * depth + "]" * depth)
        await peer.send_text(text, frame)
        answer = unwrapped(await peer.reply())
        expect_equal(answer["type"], wanted, f"the answer to a result {depth} deep", answer)


@check
async def half_a_surrogate_pair(bench: Bench) -> None:
    """R-005, R-051: a text with half a surrogate pair is no text.

    A result with one escape of a high surrogate.
    """
    peer, attempt, _ = await bench.running()
    frame = peer.frame(
        "task.finish", {"ref": attempt.ref, "outcome": "SUCCEEDED", "result": "HALF"}
    )
    await peer.send_text(peer.text_of(frame).replace("HALF", "\\ud800"), frame)
    answer = await peer.answer(frame["message_id"])
    expect_equal(answer["type"], "error", "the answer", answer)
    await peer.finish(attempt)


@check
async def number_has_a_limit(bench: Bench) -> None:
    """R-005: a number has at most 64 characters.

    Results with 65 digits and with an exponent of a billion.
    """
    peer, attempt, _ = await bench.running()
    for spelled in ("1" * 65, "1e999999999"):
        frame = peer.frame(
            "task.finish", {"ref": attempt.ref, "outcome": "SUCCEEDED", "result": "NUMBER"}
        )
        await peer.send_text(peer.text_of(frame).replace('"NUMBER"', spelled), frame)
        answer = await peer.answer(frame["message_id"])
        expect_equal(answer["type"], "error", "the answer", answer)
    await peer.finish(attempt)


@check
async def reference_has_the_forms_of_the_contract(bench: Bench) -> None:
    """R-034, R-002, R-003: an attempt reference has exactly four fields of their forms.

    An epoch as a number, with a leading zero, zero; a loose secret; a field too many or too few.
    """
    peer, attempt = await bench.assigned()
    ref = attempt.ref
    wrong: tuple[Frame, ...] = (
        {**ref, "epoch": attempt.epoch},
        {**ref, "epoch": "0" + ref["epoch"]},
        {**ref, "epoch": "0"},
        {**ref, "lease_secret": ref["lease_secret"][:-1] + "B"},
        {**ref, "more": 1},
        {name: ref[name] for name in ("task_id", "attempt_id", "epoch")},
    )
    for body in wrong:
        await peer.refused("bad_frame", "task.start", body)
    await peer.start(attempt)


@check
async def eight_are_forgiven(bench: Bench) -> None:
    """OP-08: eight malformed frames a session are answered; the ninth ends it with 1008.

    Nine frames of an unknown type.
    """
    peer = await bench.worker()
    for _ in range(BAD_FRAMES_MAX):
        await peer.refused("bad_frame", "task.cancel", {})
    await peer.send("task.cancel", {})
    await peer.fatal("bad_frame", 1008)
