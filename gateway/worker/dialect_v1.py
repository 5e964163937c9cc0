"""`pulse.worker.v1`: a frame for each operation and each assignment, and nothing pushed."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import UNSET

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
from orbit_sdk.protocol import frames
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.frames import PROTOCOL_VERSION, encode_frame
from orbit_sdk.protocol.frames_v2 import AttemptItem, FinishItem


class DialectV1:
    """See `Dialect`."""

    subprotocol: Final = "pulse.worker.v1"

    def read(self, text: str) -> Request:
        frame = frames.decode_client_frame(text)
        if isinstance(frame, frames.HelloFrame):
            return Hello(frame.message_id, frame.body)
        if isinstance(frame, frames.CapacityFrame):
            return Declaration(frame.message_id, frame.session_id, frame.body)
        message_id = frame.message_id
        if isinstance(frame, frames.FinishFrame):
            end = frame.body
            item: AttemptItem | FinishItem = FinishItem(
                message_id, end.ref, end.outcome, end.result, end.error_code
            )
        else:
            ref = frame.body
            item = AttemptItem(ref.task_id, ref.attempt_id, ref.epoch, ref.lease_secret, message_id)
        return Batch(message_id, frame.session_id, _OPERATIONS[type(frame)], (item,))

    def welcome(self, message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
        return encode_frame(
            frames.WelcomeFrame(PROTOCOL_VERSION, message_id, body.session_id, reply_to, body)
        )

    def level(self, message_id: str, reply_to: str, body: frames.WelcomeBody) -> bytes:
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
        (result,) = results
        if isinstance(result, ErrorCode):
            return self.error(message_id, result, session_id=session_id, reply_to=reply_to)
        body = outcome_body(operation, result)
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
        self, next_id: Callable[[], str], session_id: str, given: Sequence[frames.AssignBodyRaw]
    ) -> list[bytes]:
        return [
            encode_frame(frames.AssignFrameRaw(PROTOCOL_VERSION, next_id(), session_id, body))
            for body in given
        ]

    def cancel(self, message_id: str, session_id: str, what: Cancellation) -> None:
        return None

    def drain(self, message_id: str, session_id: str) -> None:
        return None


_OPERATIONS: Final[dict[type, Operation]] = {
    frames.StartFrame: Operation.START,
    frames.RenewFrame: Operation.RENEW,
    frames.FinishFrame: Operation.FINISH,
    frames.ResumeFrame: Operation.RESUME,
}
