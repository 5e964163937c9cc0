"""Where the cluster is and who is asking: arguments first, then ORBIT_URL and ORBIT_CREDENTIAL."""

import os
import re
from urllib.parse import urlsplit, urlunsplit

from orbit_sdk.errors import BadRequest, Unauthorized

DEFAULT_URL = "http://127.0.0.1:8080"
WORKER_PATH = "/v1/worker/connect"

_CREDENTIAL = re.compile(r"orbit_[0-9a-f]{16}_[A-Za-z0-9_-]{43}")


def cluster_url(url: str | None) -> str:
    """The base URL without a trailing slash. Raises BadRequest when it is not an http(s) URL."""
    text = url or os.environ.get("ORBIT_URL") or DEFAULT_URL
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
        raise BadRequest("bad_url", f"{text!r} is not a cluster URL; expected {DEFAULT_URL!r}")
    return text.rstrip("/")


def worker_url(url: str) -> str:
    """The WebSocket address of a cluster URL: http becomes ws, https becomes wss."""
    parts = urlsplit(url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return urlunsplit((scheme, parts.netloc, parts.path + WORKER_PATH, "", ""))


def credential_text(credential: str | None) -> str:
    """The credential to present. Raises Unauthorized, never showing the text, if it has no shape
    of one: a cut-off paste is told apart from a credential that the cluster refuses."""
    text = credential or os.environ.get("ORBIT_CREDENTIAL") or ""
    if not text:
        raise Unauthorized(
            "no_credential", "no credential given; pass credential= or set ORBIT_CREDENTIAL"
        )
    if not _CREDENTIAL.fullmatch(text.strip()):
        raise Unauthorized(
            "malformed_credential",
            "the credential should read orbit_<16 hex digits>_<43 characters>; it may be cut off",
        )
    return text.strip()
