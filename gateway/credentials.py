"""Who is calling: bearer credentials, checked against what the store keeps of them (OP-51).

A credential is written `orbit_<key id, 16 hex>_<43 characters of base64url>`; the store keeps the
SHA-256 of the secret's 32 bytes. One found in the store is believed for a second at most, less when
a notice of its revocation comes, and never past its own end (OP-15). No credential text leaves this
module.
"""

import binascii
import hashlib
import hmac
import re
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gateway import limits
from gateway.expiring import ExpiringCache
from gateway.store_calls import StoreCalls
from store import queries


class Scope(StrEnum):
    """What a credential may permit (OP-51)."""

    SUBMIT = "submit"
    READ = "read"
    CANCEL = "cancel"
    RETRY = "retry"
    REVIEW = "review"
    WORK = "work"
    MANAGE = "manage"


class Grant(msgspec.Struct, frozen=True):
    """A proven credential: whose it is and what it permits."""

    key_id: str
    namespace_id: str
    scopes: frozenset[str]
    queue_ids: frozenset[str] | None

    def allows_queue(self, queue_id: str) -> bool:
        """Whether the credential reaches this queue of its namespace."""
        return self.queue_ids is None or queue_id in self.queue_ids


_BEARER: Final = re.compile(rb"[Bb]earer +orbit_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


class Credentials:
    """Proves bearer credentials, with a short memory."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls
        self._known: ExpiringCache[str, queries.Credential] = ExpiringCache(
            self._read,
            ttl_s=limits.CREDENTIAL_TTL_S,
            entries_max=limits.CREDENTIALS_MAX,
            left_s=lambda found: found.left_s,
        )

    async def prove(self, authorization: bytes | None) -> Grant | None:
        """The grant of an Authorization header; None when it proves nothing.

        Raises what `is_passing` accepts when the store is away and the credential not known.
        """
        match = None if authorization is None else _BEARER.fullmatch(authorization)
        if match is None:
            return None
        try:
            secret_hash = hashlib.sha256(urlsafe_b64decode(match[2] + b"=")).digest()
        except binascii.Error:
            return None
        found = await self._known.get(match[1].decode())
        if found is None or not hmac.compare_digest(found.secret_hash, secret_hash):
            return None
        return Grant(found.key_id, found.namespace_id, found.scopes, found.queue_ids)

    def forget(self) -> None:
        """Ask the store anew about every credential."""
        self._known.forget()

    def doubt(self, key_id: str) -> None:
        """Ask the store anew about this one: it is said to be revoked."""
        self._known.drop(key_id)

    async def refused(self, key_ids: Sequence[str]) -> set[str]:
        """Those of these proven credentials that hold no more, by the store and not by memory."""
        if not key_ids:
            return set()
        valid = await self._calls.read(queries.valid_credentials, key_ids)
        refused = set(key_ids) - valid
        for key_id in refused:
            self._known.drop(key_id)
        return refused

    async def _read(self, key_id: str) -> queries.Credential | None:
        found = await self._calls.read(queries.find_credential, key_id)
        return None if found is None or found.revoked or found.left_s <= 0 else found
