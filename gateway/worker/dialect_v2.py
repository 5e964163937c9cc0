"""`pulse.worker.v2`: batches in one frame each way, and cancellation and drain pushed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import UNSET

from gateway import limits
from gateway.worker.answers import error_body, outcome_body
from gateway.worker.dialect import (
    Batch,
    Cancellation,
    Declaration,
    Hello,
    Operation,
    Request,
    Result,
)
from orbit_sdk.protocol import frames_v2 as frames
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames import AssignBodyRaw, WelcomeBody
from orbit_sdk.protocol.frames_v2 import PROTOCOL_VERSION, encode_frame
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX, FRAME_ITEMS_MAX

DRAIN_REASON: Final = "shutdown"


class DialectV2:
    """See `Dialect`."""

    subprotocol: Final = "pulse.worker.v2"

    def read(self, text: str) -> Request:
        frame = frames.decode_client_frame(text)
        if isinstance(frame, frames.HelloFrame):
            return Hello(frame.message_id, frame.body)
        if isinstance(frame, frames.CapacityFrame):
            return Declaration(frame.message_id, frame.session_id, frame.body)
        return Batch(frame.message_id, frame.session_id, _OPERATIONS[type(frame)], frame.body.items)

    def welcome(self, message_id: str, reply_to: str, body: WelcomeBody) -> bytes:
        return encode_frame(
            frames.WelcomeFrame(PROTOCOL_VERSION, message_id, body.session_id, reply_to, body)
        )

    def level(self, message_id: str, reply_to: str, body: WelcomeBody) -> bytes:
        return encode_frame(
            frames.AckFrame(PROTOCOL_VERSION, message_id, body.session_id, reply_to, body)
        )

    def answer(
        self,
        message_id: str,
        session_id: str,
        reply_to: str,
        operation: Operation,
        results: Sequence[Result],
    ) -> bytes:
        bodies: list[frames.ItemResult] = [
            frames.ItemError(error_body(result))
            if isinstance(result, ErrorCode)
            else outcome_body(operation, result)
            for result in results
        ]
        body = frames.ResultsBody(tuple(bodies))
        return encode_frame(
            frames.AckFrame(PROTOCOL_VERSION, message_id, session_id, reply_to, body)
        )

    def error(
        self, message_id: str, code: ErrorCode, *, session_id: str | None, reply_to: str | None
    ) -> bytes:
        return encode_frame(
            frames.ErrorFrame(
                PROTOCOL_VERSION,
                message_id,
                error_body(code),
                UNSET if session_id is None else session_id,
                UNSET if reply_to is None else reply_to,
            )
        )

    def assign(
        self, next_id: Callable[[], str], session_id: str, given: Sequence[AssignBodyRaw]
    ) -> list[bytes]:
        return [
            encode_frame(
                frames.AssignFrameRaw(
                    PROTOCOL_VERSION, next_id(), session_id, frames.AssignmentsBodyRaw(part)
                )
            )
            for part in _parts(given)
        ]

    def cancel(self, message_id: str, session_id: str, what: Cancellation) -> bytes:
        body = frames.CancelBody(what.attempt_id, what.task_id, what.epoch, what.reason)
        return encode_frame(frames.CancelFrame(PROTOCOL_VERSION, message_id, session_id, body))

    def drain(self, message_id: str, session_id: str) -> bytes:
        body = frames.DrainBody(DRAIN_REASON)
        return encode_frame(frames.DrainFrame(PROTOCOL_VERSION, message_id, session_id, body))


def _parts(given: Sequence[AssignBodyRaw]) -> Iterator[tuple[AssignBodyRaw, ...]]:
    """Cut where a frame would grow past what a peer takes (R-053)."""
    begin, size = 0, limits.ASSIGN_FRAME_BYTES
    for place, body in enumerate(given):
        added = len(bytes(body.task)) + limits.ASSIGN_ITEM_BYTES
        if place > begin and (size + added > FRAME_BYTES_MAX or place - begin == FRAME_ITEMS_MAX):
            yield tuple(given[begin:place])
            begin, size = place, limits.ASSIGN_FRAME_BYTES
        size += added
    if begin < len(given):
        yield tuple(given[begin:])


_OPERATIONS: Final[dict[type, Operation]] = {
    frames.StartFrame: Operation.START,
    frames.RenewFrame: Operation.RENEW,
    frames.FinishFrame: Operation.FINISH,
    frames.ResumeFrame: Operation.RESUME,
}
