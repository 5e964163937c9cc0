"""How long to wait before the next try: exponential, capped, jittered. Pure (R-153)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays of `first_s`, doubled each time, never above `cap_s`.

    `share` spreads them: a delay d becomes d * (1 - spread * share) for a share in [0, 1), so that
    many processes that failed at one moment do not come back at one moment.
    """

    first_s: float
    cap_s: float
    spread: float = 0.5

    def within(self, cap_s: float) -> "Backoff":
        """The same under a lower cap."""
        return Backoff(self.first_s, min(self.cap_s, cap_s), self.spread)

    def delay_s(self, tries: int, share: float) -> float:
        """The wait after `tries` failures in a row (from 1), never 0 and never above the cap."""
        doublings = min(max(tries, 1) - 1, 32)
        full = min(self.cap_s, self.first_s * float(2**doublings))
        return full * (1.0 - self.spread * share)
