"""Lease secrets: derived, never stored, checked before any database work (architecture section 6).

A secret is HMAC-SHA256 over (attempt id, lease epoch) with a key of the cluster's ring, so every
node can hand it out and every node can check it. Secrets are made with the first key of the ring
and accepted from any, so that keys can be rotated: put the new one first, drop the old one when
every lease made with it is over.
"""

import binascii
import hmac
from collections.abc import Mapping
from typing import Final

_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")
_SECRET_CHARS: Final = 43


class KeyRing:
    """The cluster's keys by number; the first one signs."""

    __slots__ = ("_first", "_others")

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        if not keys:
            raise ValueError("a key ring needs at least one key")
        self._first, *self._others = keys.values()

    def derive(self, attempt_id: str, epoch: str) -> str:
        """The secret of one lease, as the wire carries it (R-003)."""
        return _derive(self._first, attempt_id, epoch)

    def verify(self, attempt_id: str, epoch: str, secret: str) -> bool:
        """Whether `secret` belongs to this lease; constant time for each key (INV-42)."""
        if hmac.compare_digest(secret, _derive(self._first, attempt_id, epoch)):
            return True
        return any(
            hmac.compare_digest(secret, _derive(key, attempt_id, epoch)) for key in self._others
        )


def _derive(key: bytes, attempt_id: str, epoch: str) -> str:
    digest = hmac.digest(key, f"lease:{attempt_id}:{epoch}".encode(), "sha256")
    text = binascii.b2a_base64(digest, newline=False).translate(_URL_SAFE)
    return text[:_SECRET_CHARS].decode()
