"""The worker side: `pulse.worker.v1` sessions, a pure core under a thin socket shell."""
