"""Between the versions of the worker socket: a v2 frame as the v1 frames it stands for, and back.

What the tests say about single operations then holds for both.
"""

from collections.abc import Sequence
from typing import Any, assert_never

from orbit_sdk.protocol import frames as v1
from orbit_sdk.protocol import frames_v2 as v2
from orbit_sdk.worker.dialect import Dialect, DialectV1, DialectV2
from tests.contract.oracle import Version

DIALECTS: dict[Version, Dialect] = {"1": DialectV1(), "2": DialectV2()}

_SINGLE: dict[type, type] = {
    v2.ResumeFrame: v1.ResumeFrame,
    v2.StartFrame: v1.StartFrame,
    v2.RenewFrame: v1.RenewFrame,
}


def operations_in(data: bytes, version: Version) -> list[v1.ClientFrame]:
    """The frames of v1 that this message of the worker stands for."""
    if version == "1":
        return [v1.decode_client_frame(data)]
    frame = v2.decode_client_frame(data)
    match frame:
        case v2.HelloFrame(message_id=message_id, body=hello):
            return [v1.HelloFrame("1", message_id, hello)]
        case v2.CapacityFrame(message_id=message_id, session_id=session_id, body=level):
            return [v1.CapacityFrame("1", message_id, session_id, level)]
        case v2.FinishFrame(session_id=session_id, body=ends):
            return [
                v1.FinishFrame(
                    "1",
                    end.message_id,
                    session_id,
                    v1.FinishBody(end.ref, end.outcome, end.result, end.error_code),
                )
                for end in ends.items
            ]
        case _:
            single: Any = _SINGLE[type(frame)]
            return [
                single(
                    "1",
                    item.message_id,
                    frame.session_id,
                    v1.AttemptRef(item.task_id, item.attempt_id, item.epoch, item.lease_secret),
                )
                for item in frame.body.items
            ]


def frame_id_of(data: bytes) -> str:
    """The id that the answer to a v2 message names."""
    return v2.decode_client_frame(data).message_id


def in_v2(frame: v1.ServerFrame) -> v2.ServerFrame:
    """A frame of the server that answers no batch."""
    match frame:
        case v1.WelcomeFrame(message_id=message_id, session_id=session_id, reply_to=to, body=body):
            return v2.WelcomeFrame("2", message_id, session_id, to, body)
        case v1.AckFrame(message_id=message_id, session_id=session_id, reply_to=to, body=level):
            body = level if isinstance(level, v1.WelcomeBody) else v2.ResultsBody((level,))  # type: ignore[assignment]
            return v2.AckFrame("2", message_id, session_id, to, body)
        case v1.AssignFrame(message_id=message_id, session_id=session_id, body=given):
            return v2.AssignFrame("2", message_id, session_id, v2.AssignmentsBody((given,)))
        case v1.ErrorFrame(message_id=message_id, error=error, session_id=session, reply_to=to):
            return v2.ErrorFrame("2", message_id, error, session, to)
        case _:
            assert_never(frame)


def joined(message_id: str, reply_to: str, answers: Sequence[v1.ServerFrame]) -> v2.AckFrame:
    """The answers to the operations of one v2 frame, as its answer."""
    results: list[v2.ItemResult] = []
    session_id = ""
    for answer in answers:
        if isinstance(answer, v1.ErrorFrame):
            results.append(v2.ItemError(answer.error))
            assert isinstance(answer.session_id, str)
            session_id = answer.session_id
        else:
            assert isinstance(answer, v1.AckFrame)
            assert not isinstance(answer.body, v1.WelcomeBody)
            results.append(answer.body)
            session_id = answer.session_id
    return v2.AckFrame("2", message_id, session_id, reply_to, v2.ResultsBody(tuple(results)))
