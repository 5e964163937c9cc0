"""The checks, one module a phase of the protocol. Importing this fills the suite."""

from orbit_sdk.conformance.cases import (
    assigning,
    batches,
    batching,
    capacity,
    finishing,
    flooding,
    handshake,
    hello,
    lapses,
    leaving,
    lifetimes,
    malformed,
    negotiating,
    operations,
    pushing,
    relaying,
    renewing,
    resuming,
    retries,
    revocation,
    slowness,
    submission,
)
from orbit_sdk.conformance.checks import Check, suite

PHASES = (
    handshake,
    negotiating,
    hello,
    capacity,
    assigning,
    renewing,
    finishing,
    resuming,
    batching,
    pushing,
    relaying,
    malformed,
    flooding,
    slowness,
    leaving,
    revocation,
    lifetimes,
    lapses,
    retries,
    submission,
    batches,
    operations,
)
"""The order in which one reads them: a connection's life, then the API."""


def all_checks() -> list[Check]:
    """Every check, phase by phase."""
    order = [module.__name__.rpartition(".")[2] for module in PHASES]
    return sorted(suite.checks, key=lambda check: order.index(check.phase))
