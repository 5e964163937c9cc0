"""Who asked for an attempt without being able to prove that it is his (OP-22).

Such a caller is told `attempt_not_found`, as if there were none, and leaves no row. Here he leaves
a line in the log, one each few seconds at most, and a count on the metrics page.
"""

from typing import Final

from runtime.logs import LogLimiter, get_logger

log = get_logger(__name__)
_QUIET_S: Final = 5.0


class Unproven:
    """Notes the failed proofs of one node."""

    def __init__(self) -> None:
        self.count = 0
        self._limiter = LogLimiter(_QUIET_S)

    def note(self, caller_id: str, attempt_id: str) -> None:
        """A session, or an instance past its socket, gave no proof for this attempt."""
        self.count += 1
        held_back = self._limiter.held_back()
        if held_back is not None:
            log.warning(
                "attempt_not_proven",
                caller_id=caller_id,
                attempt_id=attempt_id,
                held_back=held_back,
            )
