"""One attempt as the worker holds it, from its assignment to the final answer to its report.

    STARTING --ack: active, RUNNING--> RUNNING --handler ended--> FINISHING --final answer--> gone
        |                                 |                            ^
        | lapsed, refused                 | lost: handler is told to   | never ran, but the server
        +--> gone (it never ran)          | stop; it may still report  | counts it as started
                                          +----------------------------+

`owned` is beside these steps: it says that the current session holds the attempt, by its start or
by a resume, and nothing but a resume may be sent for it otherwise (OP-14).
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from orbit_sdk.protocol.frames import AssignedTask, AttemptRef, LeaseBody
from orbit_sdk.worker.lease import ends_at_deadline, margin_s, stop_boundary
from orbit_sdk.worker.outcomes import Report, confirmed


class Step(StrEnum):
    """Where an attempt stands."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHING = "finishing"


@dataclass(slots=True)
class Held:
    """State of one attempt. Instants are monotonic seconds; `inf` means never.

    `finish_id` is drawn once and names the report over every repeat, refusal and reconnect, and so
    does `start_id` until the start is refused (R-117). `waiting_for` is the message whose answer
    the attempt cannot go on without. `lost`: the lease is over by our count, so the server may give
    its slot away; it stays lost. `cancelled`: the platform wants it stopped. `untold`: it was
    stopped since the task's deadline has come by our count, and the platform has not said so; a
    confirmation of the stop is `kept` until it does, since before that there is none to confirm.
    """

    ref: AttemptRef
    task: AssignedTask
    start_id: str
    boundary: float = -inf
    step: Step = Step.STARTING
    owned: bool = True
    lost: bool = False
    cancelled: bool = False
    ends_at_deadline: bool = False
    untold: bool = False
    kept: Report | None = None
    waiting_for: str | None = None
    retry_at: float = inf
    tries: int = 0
    renew_id: str | None = None
    renew_at: float = inf
    finish_id: str | None = None
    report: Report | None = None
    result_replaced: bool = False

    def due(self) -> float:
        """When time alone next asks for something."""
        if self.step is Step.STARTING or self.lost:
            return self.retry_at
        return min(self.boundary, self.renew_at, self.retry_at)

    def disconnected(self) -> None:
        """The session is gone: what was under way has no answer, and the next one must resume."""
        self.owned = False
        self.waiting_for = None
        self.retry_at = inf
        self.renew_id = None
        self.renew_at = inf

    def confirmed(self, lease: LeaseBody, sent_at: float, lease_s: float) -> None:
        """An answer shows the lease. Both boundaries are proven, and lease_until never goes back
        (INV-4): the later one holds."""
        self.tries = 0
        self.boundary = max(self.boundary, stop_boundary(sent_at, lease, lease_s))
        self.ends_at_deadline = ends_at_deadline(self.task, lease)

    def out_of_time(self, lease_s: float) -> None:
        """The boundary is the deadline's: there is one more window, to report in (OP-26). A renewal
        asked for once it is open says so, if nothing else does."""
        self.untold = True
        self.renew_id = None
        self.renew_at = self.boundary + 2 * margin_s(lease_s) if self.owned else inf
        self.boundary += lease_s

    def finishing(self, report: Report, finish_id: str) -> None:
        """The handler's outcome is known; nothing is renewed any more."""
        self.step = Step.FINISHING
        self.report = confirmed(report) if self.cancelled else report
        self.finish_id = finish_id
        self.renew_id = None
        self.renew_at = inf
