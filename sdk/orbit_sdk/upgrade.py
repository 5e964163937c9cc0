"""How the SDK opens a worker's socket: as `websockets` does, but nowhere else and unseen.

The handshake carries the credential and the frames carry secrets. So no redirect is followed, and
neither headers nor frames reach a log, whatever its level (R-111, R-118, INV-42).
"""

import logging
from typing import Any

from websockets.asyncio.client import connect


class SocketLog(logging.LoggerAdapter[logging.Logger]):
    """A logger that knows no level below a warning."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name that logging gives it
        """Headers and frames are logged for debugging alone, and here never."""
        return level >= logging.WARNING and super().isEnabledFor(level)


class Upgrade(connect):
    """`connect` of websockets, with the same options; a redirect is an InvalidStatus."""

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(uri, logger=SocketLog(_log), **options)

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Go nowhere else: another host is no business of this credential."""
        return exc


_log = logging.getLogger("orbit_sdk.socket")
