"""The server under test, and what its operator gives for the checks that need one."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

WORKER_PATH: Final = "/v1/worker/connect"


@dataclass(frozen=True, slots=True)
class Target:
    """Only the first three are needed; a check that needs more is skipped without it."""

    url: str
    credential: str
    queue: str
    queue_id: str = ""
    other_url: str | None = None
    """Another node of the same cluster."""
    other_credential: str | None = None
    """A credential of another application."""
    spare_credential: str | None = None
    """A further credential of the application, which `revoke` revokes."""
    revoke: str | None = None
    """A shell command that revokes the spare credential."""
    brief_credential: str | None = None
    """A further credential of the application, which ends within a minute."""
    brief_url: str | None = None
    """A node of the same cluster whose sessions live for a minute at most."""
    leaving_url: str | None = None
    """A node of the same cluster, not at `url`, which `leave` stops."""
    leave: str | None = None
    """A shell command that makes that node leave in good order."""
    slow: bool = False
    """Whether the checks that take half a minute are wanted."""

    def worker_url(self, url: str | None = None) -> str:
        """The address of the worker socket."""
        parts = urlsplit(url or self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + WORKER_PATH, "", ""))
