"""The cache of short-lived reads: one read for many askers, bounded, and safe to cancel."""

import asyncio

import pytest

from gateway.expiring import ExpiringCache
from tests.gateway.harness import eventually


class Source:
    def __init__(self) -> None:
        self.reads: list[str] = []
        self.values: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, key: str) -> str | None:
        self.reads.append(key)
        await self.gate.wait()
        if key == "broken":
            raise OSError("away")
        return self.values.get(key)


async def test_a_found_value_is_read_once_and_an_absent_one_each_time() -> None:
    source = Source()
    cache = ExpiringCache(source, ttl_s=60, entries_max=10)
    assert await cache.get("a") is None
    source.values["a"] = "1"
    assert [await cache.get("a"), await cache.get("a"), cache.peek("a")] == ["1", "1", "1"]
    assert source.reads == ["a", "a"]
    cache.forget()
    assert cache.peek("a") is None


async def test_a_value_that_is_too_old_is_read_again() -> None:
    source = Source()
    source.values["a"] = "1"
    cache = ExpiringCache(source, ttl_s=0.0, entries_max=10)
    await cache.get("a")
    source.values["a"] = "2"
    assert await cache.get("a") == "2"
    del source.values["a"]
    assert await cache.get("a") is None
    assert len(cache) == 0


async def test_a_value_is_not_believed_for_longer_than_it_is_true() -> None:
    """OP-15: a credential found a moment before its end."""
    source = Source()
    source.values |= {"over": "0", "lasting": "60"}
    cache = ExpiringCache(source, ttl_s=60, entries_max=10, left_s=float)
    for _ in range(2):
        assert [await cache.get("over"), await cache.get("lasting")] == ["0", "60"]
    assert source.reads == ["over", "lasting", "over"]


async def test_askers_at_once_share_one_read_and_one_may_leave() -> None:
    """INV-38: a cancelled asker fails no other."""
    source = Source()
    source.values["a"] = "1"
    source.gate.clear()
    cache = ExpiringCache(source, ttl_s=60, entries_max=10)
    askers = [asyncio.create_task(cache.get("a")) for _ in range(5)]
    await asyncio.sleep(0)
    askers[0].cancel()
    source.gate.set()
    assert await asyncio.gather(*askers[1:]) == ["1"] * 4
    assert source.reads == ["a"]


async def test_it_is_bounded() -> None:
    source = Source()
    source.values = {str(n): str(n) for n in range(20)}
    cache = ExpiringCache(source, ttl_s=60, entries_max=3)
    for key in source.values:
        await cache.get(key)
    assert len(cache) == 3
    assert cache.peek("19") == "19"


async def test_a_failed_read_is_the_askers_and_is_not_kept() -> None:
    source = Source()
    cache = ExpiringCache(source, ttl_s=60, entries_max=3)
    for _ in range(2):
        with pytest.raises(OSError, match="away"):
            await cache.get("broken")
    assert source.reads == ["broken", "broken"]


async def test_a_dropped_value_is_read_again_and_a_read_under_way_is_not_kept() -> None:
    """OP-15: a read that began before a revocation must not bring the credential back."""
    source = Source()
    source.values["a"] = "1"
    cache = ExpiringCache(source, ttl_s=60, entries_max=10)
    source.gate.clear()
    old = asyncio.ensure_future(cache.get("a"))
    await eventually(lambda: len(source.reads) == 1)
    cache.drop("a")
    new = asyncio.ensure_future(cache.get("a"))
    await eventually(lambda: len(source.reads) == 2)
    source.gate.set()
    assert [await old, await new] == ["1", "1"]
    assert cache.peek("a") == "1"  # of the later read
    cache.drop("a")
    assert cache.peek("a") is None
    source.gate.clear()
    late = asyncio.ensure_future(cache.get("a"))
    await eventually(lambda: len(source.reads) == 3)
    cache.drop("a")
    source.gate.set()
    assert await late == "1"
    assert cache.peek("a") is None
