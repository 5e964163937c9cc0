"""What the session core asks its shell to do, in order. Frozen values."""

from dataclasses import dataclass
from enum import StrEnum

from orbit_sdk.protocol.frames import AssignedTask


class StopReason(StrEnum):
    """Why a handler has to stop."""

    CANCELLED = "cancelled"
    """A caller wants it: stop, and say so in time (OP-03)."""

    DEADLINE = "deadline"
    """The task's deadline has come: stop, and say so in the one window for it (OP-26)."""

    LEASE_LOST = "lease_lost"
    """The right to work is gone or can no longer be shown: someone else may hold it soon."""

    SHUTDOWN = "shutdown"
    """This process ends now."""


@dataclass(frozen=True, slots=True)
class Send:
    """Write this text message to the socket, after all earlier ones."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Call the handler: the platform has authorised it. `work_until` is a monotonic instant at
    which the attempt's time-out or the task's deadline ends it whatever happens."""

    attempt_id: str
    epoch: int
    task: AssignedTask
    work_until: float


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the handler to stop; it still ends with a report or with `abandoned`."""

    attempt_id: str
    reason: StopReason


@dataclass(frozen=True, slots=True)
class Settled:
    """The report has its final answer: `applied`, or it changed nothing and `detail` says why."""

    attempt_id: str
    applied: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The session is ready."""

    session_id: str
    lease_s: float
    draining: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """Close this connection. `final`: the server refuses this worker as it is, so unless it was
    welcome before, connecting again is of no use."""

    code: str
    message: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """Worth a line in the log: what happened to which attempt."""

    what: str
    attempt_id: str | None = None


Effect = Send | Run | Stop | Settled | Welcomed | Leave | Noted
