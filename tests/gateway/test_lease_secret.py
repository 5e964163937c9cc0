"""Lease secrets are proven, not stored (OP-11, R-003, INV-42)."""

import base64
import hashlib
import hmac

import pytest

from gateway.worker.lease_secret import KeyRing
from orbit_sdk.protocol.scalars import is_secret

OLD, NEW = bytes(32), bytes(range(32))
ATTEMPT = "0" * 31 + "a"


def test_a_secret_is_hmac_sha256_in_the_wire_form() -> None:
    secret = KeyRing({1: NEW}).derive(ATTEMPT, "7")
    expected = hmac.new(NEW, f"lease:{ATTEMPT}:7".encode(), hashlib.sha256).digest()
    assert secret == base64.urlsafe_b64encode(expected).decode().rstrip("=")
    assert is_secret(secret)


@pytest.mark.parametrize(
    ("attempt", "epoch"), [(ATTEMPT, "8"), ("0" * 31 + "b", "7"), (ATTEMPT + "7", "")]
)
def test_a_secret_proves_one_attempt_and_one_epoch(attempt: str, epoch: str) -> None:
    ring = KeyRing({1: NEW})
    secret = ring.derive(ATTEMPT, "7")
    assert ring.verify(ATTEMPT, "7", secret)
    assert not ring.verify(attempt, epoch, secret)


def test_an_older_key_of_the_ring_is_accepted_until_it_is_dropped() -> None:
    secret = KeyRing({1: OLD}).derive(ATTEMPT, "1")
    rotated = KeyRing({2: NEW, 1: OLD})
    assert rotated.verify(ATTEMPT, "1", secret)
    assert rotated.derive(ATTEMPT, "1") == KeyRing({2: NEW}).derive(ATTEMPT, "1")
    assert not KeyRing({2: NEW}).verify(ATTEMPT, "1", secret)


def test_a_ring_needs_a_key_and_shows_none() -> None:
    with pytest.raises(ValueError, match="at least one"):
        KeyRing({})
    assert "x" * 32 not in repr(KeyRing({1: b"x" * 32}))
