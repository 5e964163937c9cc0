"""A worker that asks faster than it is answered: so many commands may wait, no more (OP-07)."""

from collections.abc import Sequence
from typing import Final

from orbit_sdk.conformance.batch import ITEMS_MAX, item
from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import Skipped, check, expect, expect_equal
from orbit_sdk.conformance.peer import Attempt, Frame, Peer

OPEN_MAX: Final = 1_024
"""So many commands of one session may be unanswered, each item of a batch counted."""

BURST: Final = OPEN_MAX + 2 * ITEMS_MAX
"""Sent in one go. Commands of one attempt come one after the other, so the last ones wait long."""

BURSTS_MAX: Final = 3
"""A server that has answered enough of so many bursts in time is too fast for this."""

PATIENCE_S: Final = 40.0
"""A command that waits for others is answered within 30 s."""

MAY_REFUSE: Final = ("rate_limited", "unavailable")


def _renewals(peer: Peer, attempt: Attempt) -> list[Frame]:
    """A burst of renewals of one attempt, as few frames as there may be."""
    if "task.renew" not in peer.version.batched:
        return [peer.frame("task.renew", attempt.ref) for _ in range(BURST)]
    bodies = [
        {"items": [item(attempt) for _ in range(ITEMS_MAX)]} for _ in range(BURST // ITEMS_MAX)
    ]
    return [peer.frame("task.renew", body) for body in bodies]


def _operation(frame: Frame) -> str:
    """The message id of a frame's first command."""
    first = frame["body"].get("items", [frame])[0]
    return str(first["message_id"])


async def _answers(peer: Peer, frames: Sequence[Frame]) -> dict[str, Frame]:
    """Send everything, then read: the answers by what they answer, one a frame."""
    texts = [peer.text_of(frame) for frame in frames]
    for text, frame in zip(texts, frames, strict=True):
        await peer.send_text(text, frame)
    answers: dict[str, Frame] = {}
    while len(answers) < len(frames):
        answer = await peer.reply(PATIENCE_S)
        asked = answer.get("reply_to")
        expect(asked is not None and asked not in answers, "one frame, one answer (R-117)", answer)
        answers[str(asked)] = answer
    return answers


def _is_refused(answer: Frame) -> bool:
    """Whether the frame was refused; whatever else was said must be of its kind."""
    if answer["type"] == "error":
        code = answer["error"]["code"]
        expect(code in MAY_REFUSE, f"the error's code is {code!r}, not 'rate_limited'", answer)
        return bool(code == "rate_limited")
    for result in answer["body"].get("results", [answer["body"]]):
        code = result.get("error", {}).get("code")
        renewed = result.get("receipt", {}).get("operation") == "renew"
        expect(renewed or code in MAY_REFUSE, "the answer to a renewal", answer)
    return False


@check
async def commands_have_a_bound(bench: Bench) -> None:
    """OP-07, R-117, R-157: what passes 1,024 open commands is rate_limited, and nothing was done.

    Renewals of one attempt in one burst, nothing read before all are sent; a refused one is sent
    again, and the attempt is finished.
    """
    peer, attempt, _ = await bench.running()
    refused: list[Frame] = []
    for _ in range(BURSTS_MAX):
        frames = _renewals(peer, attempt)
        answers = await _answers(peer, frames)
        size = BURST // len(frames)
        for place, frame in enumerate(frames, 1):
            if _is_refused(answer := answers[frame["message_id"]]):
                sent = place * size
                expect(sent > OPEN_MAX, f"refused, though only {sent} were sent", answer)
                refused.append(frame)
        if refused:
            break
    else:
        raise Skipped(f"the server answers too fast for more than {OPEN_MAX} to be open")
    again = await peer.renew(attempt, message_id=_operation(refused[0]))
    expect_equal(again["receipt"]["disposition"], "APPLIED", "the disposition", again)
    expect_equal(again["deduplicated"], False, "deduplicated", again)
    finished = await peer.finish(attempt)
    expect_equal(finished["receipt"]["disposition"], "APPLIED", "the disposition", finished)
