"""The owner's credential function may block, fail or hang: no try is lost to it but its own."""

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from orbit_sdk.errors import Unauthorized, Unavailable
from orbit_sdk.worker.courier import Courier
from orbit_sdk.worker.credential import CredentialSource
from orbit_sdk.worker.dialect import Operation
from orbit_sdk.worker.limits import CREDENTIAL_CALLS_MAX
from orbit_sdk.worker.relay import Parcel
from orbit_sdk.worker.worker import EXIT_CLEAN, Worker
from tests.sdk.worker.served_gateway import CREDENTIAL, served_gateway

TIMEOUT = "orbit_sdk.worker.credential.CREDENTIAL_TIMEOUT_S"


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """What hangs waits for this, and is let go when the test is over."""
    event = threading.Event()
    yield event
    event.set()


async def test_a_call_that_hangs_is_given_up_and_the_next_one_counts(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TIMEOUT, 0.05)
    hangs = True

    def ask() -> str:
        if hangs:
            hang.wait()
        return CREDENTIAL

    source = CredentialSource(ask)
    with pytest.raises(Unavailable, match="not returned") as caught:
        await source.now()
    assert caught.value.retryable
    hangs = False
    monkeypatch.setattr(TIMEOUT, 10.0)
    assert await source.now() == CREDENTIAL


async def test_calls_that_hang_for_good_are_bounded(
    hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TIMEOUT, 0.01)
    calls = threading.Semaphore(0)

    def ask() -> str:
        calls.release()
        hang.wait()
        return CREDENTIAL

    source = CredentialSource(ask)
    for _ in range(2 * CREDENTIAL_CALLS_MAX):
        with pytest.raises(Unavailable) as caught:
            await source.now()
        assert caught.value.retryable
    for _ in range(CREDENTIAL_CALLS_MAX):
        assert calls.acquire(timeout=10)
    assert "still hang" in caught.value.message
    assert not calls.acquire(blocking=False)


@pytest.mark.parametrize("error", [OSError("the vault is away"), TimeoutError(), SystemExit(1)])
async def test_whatever_it_raises_is_a_failed_try(error: BaseException) -> None:
    def ask() -> str:
        raise error

    with pytest.raises(Unavailable, match=type(error).__name__) as caught:
        await CredentialSource(ask).now()
    assert caught.value.retryable


async def test_an_error_of_ours_keeps_its_meaning_and_the_context_its_values() -> None:
    tenant = ContextVar("tenant", default="none")

    def ask() -> str:
        raise Unauthorized("no_credential", tenant.get())

    tenant.set("blue")
    with pytest.raises(Unauthorized, match="blue"):
        await CredentialSource(ask).now()


@pytest.mark.parametrize("hanging_call", [1, 2, 3])
async def test_a_worker_outlives_a_call_that_never_returns(
    hanging_call: int, hang: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is for the look-up of the queue, the third for the reconnect."""
    monkeypatch.setattr(TIMEOUT, 0.5)
    calls = 0

    def ask() -> str:
        nonlocal calls
        calls += 1
        if calls == hanging_call:
            hang.wait()
        return CREDENTIAL

    async with served_gateway() as gateway:
        worker = Worker(gateway.url, ask)
        worker.handler("work")(lambda: None)
        served = asyncio.create_task(worker.serve())
        await gateway.ready()
        gateway.socket.transport.abort()
        await gateway.until(lambda: not gateway.model.session_id)
        await gateway.ready()
        worker.stop()
        assert await asyncio.wait_for(served, 30) == EXIT_CLEAN
    assert calls > hanging_call


async def test_a_parcel_does_not_wait_for_a_credential_longer_than_for_its_answer() -> None:
    never = asyncio.Event()

    async def ask() -> str:
        await never.wait()
        return CREDENTIAL

    courier = Courier("http://127.0.0.1:9", ask)
    parcel = Parcel(Operation.RENEW, b"{}", (("a", "b"),), 0.0)
    async with asyncio.timeout(30):
        assert await courier.post(parcel, 0.05) is None
    await courier.close()
