"""How an attempt ends: what a handler may raise, and the report that is sent for it. Pure."""

from dataclasses import dataclass, replace

from orbit_sdk.business_json import NotSendable, encode_value
from orbit_sdk.protocol.errors import ErrorCode
from orbit_sdk.protocol.limits import ERROR_CODE_CHARS_MAX
from orbit_sdk.protocol.scalars import is_token
from orbit_sdk.protocol.shapes import Receipt
from orbit_sdk.protocol.states import Outcome
from orbit_sdk.worker.limits import ERROR_TEXT_CHARS_MAX

# Codes that the SDK gives by itself; the server retries all but the ones OP-27 names.
HANDLER_ERROR = "handler_error"
INVALID_INPUT = "invalid_input"
RESULT_TOO_LARGE = "result_too_large"
RESULT_NOT_JSON = "result_not_json"
RESULT_REFUSED = "result_refused"
CANCELLED = "cancelled"
STARTED_TOO_LATE = "started_too_late"
WORKER_STOPPED = "worker_stopped"

# The result itself is what the server will not have; a smaller report may still get through.
RESULT_FAULTS = frozenset({ErrorCode.PAYLOAD_TOO_LARGE.value, ErrorCode.BAD_FRAME.value})

_FINAL_PREFIX = "fatal."


class TaskFailed(Exception):
    """Raise it in a handler to fail the attempt with a code and a result of your own.

    `retryable=False` ends the task at once: the code then travels with the prefix `fatal.`, which
    the cluster never retries. Raises ValueError for a code that is not 1 to 64 letters, digits and
    `_ . : -`, the prefix included.
    """

    def __init__(self, code: str, result: object = None, *, retryable: bool = True) -> None:
        self.code = _checked_code(code if retryable else _final(code))
        self.result = result
        super().__init__(code)


class TaskUnknown(Exception):
    """Raise it when you cannot tell whether the work took effect: the task goes to review, and
    nothing is repeated. Raises ValueError for a malformed code."""

    def __init__(self, code: str, result: object = None) -> None:
        self.code = _checked_code(code)
        self.result = result
        super().__init__(code)


class TaskCancelled(Exception):
    """Raised by `TaskContext.raise_if_cancelled`: the handler has stopped because it was told to.

    Let it pass, after cleaning up. Catching it and returning a value reports a success.
    """


@dataclass(frozen=True, slots=True)
class Report:
    """What is sent to the server: an outcome, JSON bytes that are not null, and a code."""

    outcome: Outcome
    result: bytes
    error_code: str | None = None


def succeeded(value: object) -> Report:
    """The report for a returned value. None travels as `{}`, since null is not a value on the wire.

    A value that cannot travel fails the attempt: `result_too_large` or `result_not_json`.
    """
    try:
        return Report(Outcome.SUCCEEDED, b"{}" if value is None else encode_value(value))
    except NotSendable as error:
        code = RESULT_TOO_LARGE if error.too_large else RESULT_NOT_JSON
        return failed(code, error)


def failed(code: str, error: BaseException | str) -> Report:
    """A failure with the usual result: the kind of the error and its bounded text."""
    name = "Failure" if isinstance(error, str) else type(error).__name__
    text = str(error)[:ERROR_TEXT_CHARS_MAX].encode("utf-8", "replace").decode()
    return Report(Outcome.FAILED, encode_value({"error": name, "message": text}), code)


def raised(error: BaseException) -> Report:
    """The report for an exception that a handler let pass."""
    if isinstance(error, TaskFailed):
        return _chosen(Outcome.FAILED, error.code, error.result)
    if isinstance(error, TaskUnknown):
        return _chosen(Outcome.UNKNOWN, error.code, error.result)
    if isinstance(error, TaskCancelled):
        return failed(CANCELLED, "the handler stopped on request")
    return failed(HANDLER_ERROR, error)


def is_stop(report: Report) -> bool:
    """Whether a handler says that it stopped because it was told to."""
    return report.outcome is Outcome.FAILED and report.error_code == CANCELLED


def confirmed(report: Report) -> Report:
    """The report on an attempt that the platform wants stopped: a stop is confirmed as such, and
    anything else is what it is (R-128)."""
    return replace(report, outcome=Outcome.CANCELLED) if is_stop(report) else report


def final_words(answer: Receipt | str) -> str:
    """What became of a report, for the log."""
    return answer if isinstance(answer, str) else f"{answer.disposition}, {answer.attempt_state}"


def _chosen(outcome: Outcome, code: str, result: object) -> Report:
    try:
        return Report(outcome, b"{}" if result is None else encode_value(result), code)
    except NotSendable as error:
        # The code matters more than the value that came with it.
        return Report(outcome, encode_value({"result_not_sent": str(error)}), code)


def _final(code: str) -> str:
    return code if code.startswith(_FINAL_PREFIX) else _FINAL_PREFIX + code


def _checked_code(code: str) -> str:
    if not is_token(code, ERROR_CODE_CHARS_MAX):
        raise ValueError(
            f"{code!r} is not an error code: 1 to {ERROR_CODE_CHARS_MAX} of A-Z a-z 0-9 _ . : -"
        )
    return code
