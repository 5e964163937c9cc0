"""Failpoints: off unless meant, and the same faults again for the same seed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import failpoints
from runtime.failpoints import InjectedFault, arm, passes, reach, read_failpoints
from runtime.settings import DispatcherSettings, SettingsError, load_settings
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def _disarmed_afterwards() -> Iterator[None]:
    yield
    arm([])


async def fired(text: str, times: int, seed: int = 0) -> list[int]:
    """At which times a `drop` of this rule fires."""
    arm(read_failpoints(text, seed))
    return [n for n in range(1, times + 1) if not await passes("a.b")]


async def test_unarmed_nothing_happens() -> None:
    arm([])
    assert not failpoints.armed
    await reach("a.b")


async def test_other_sites_are_left_alone() -> None:
    arm(read_failpoints("a.b=error", 0))
    assert failpoints.armed
    await reach("a.c")
    with pytest.raises(InjectedFault):
        await reach("a.b")


async def test_when_it_fires() -> None:
    assert await fired("a.b=drop", 3) == [1, 2, 3]
    assert await fired("a.b=drop@2", 4) == [2]
    assert await fired("a.b=drop@3+", 4) == [3, 4]
    assert await fired("a.b=drop@2;a.b=drop@4", 5) == [2, 4]


async def test_a_seed_decides_what_chance_brings() -> None:
    first = await fired("a.b=drop@0.3", 200, seed=7)
    assert first == await fired("a.b=drop@0.3", 200, seed=7)
    assert first != await fired("a.b=drop@0.3", 200, seed=8)
    assert 30 < len(first) < 90


async def test_a_drop_raises_what_the_site_calls_lost() -> None:
    arm(read_failpoints("a.b=drop", 0))
    with pytest.raises(ConnectionResetError):
        await reach("a.b")
    with pytest.raises(TimeoutError):
        await reach("a.b", TimeoutError)


async def test_a_sleep_takes_any_time_of_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(failpoints.asyncio, "sleep", note)
    for text, least, most in (("0.25", 0.25, 0.25), ("1..2.5", 1.0, 2.5), ("0..4@0.9", 0.0, 4.0)):
        slept.clear()
        arm(read_failpoints(f"a.b=sleep:{text}", 3))
        for _ in range(200):
            await reach("a.b")
        assert least <= min(slept) <= max(slept) <= most
        assert max(slept) - min(slept) >= 0.9 * (most - least)


async def test_a_pause_shows_itself_and_ends_with_its_file(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    arm(read_failpoints(f"a.b=pause:{gate}", 0))
    reaching = asyncio.create_task(reach("a.b"))

    async def is_here() -> bool:
        return (tmp_path / "gate.here").exists()

    await wait_until(is_here, bool, 5)
    assert not reaching.done()
    gate.touch()
    await reaching


@pytest.mark.parametrize(
    "text",
    [
        "a=drop", "a.b", "a.b=explode", "a.b=sleep", "a.b=kill:now", "a.b=drop@", "a.b=drop@2.5",
        "a.b=drop@0", "a.b=sleep:soon", "A.b=drop",
        "a.b=sleep:1..", "a.b=sleep:..2", "a.b=sleep:1..soon",
    ],
)  # fmt: skip
def test_wrong_rules_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_failpoints(text, 0)


def test_a_process_refuses_to_start_with_them_unless_they_are_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORBIT_DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("ORBIT_REDIS_URL", "redis://h")
    assert load_settings(DispatcherSettings).armed_failpoints() == []
    monkeypatch.setenv("ORBIT_FAILPOINTS", "a.b=drop@0.5")
    with pytest.raises(SettingsError, match=r"ORBIT_FAILPOINTS: .*ORBIT_FAILPOINTS_ALLOWED=1"):
        load_settings(DispatcherSettings)
    monkeypatch.setenv("ORBIT_FAILPOINTS_ALLOWED", "1")
    [point] = load_settings(DispatcherSettings).armed_failpoints()
    assert (point.name, point.action, point.chance) == ("a.b", "drop", 0.5)
    monkeypatch.setenv("ORBIT_FAILPOINTS", "a.b=explode")
    with pytest.raises(SettingsError, match="ORBIT_FAILPOINTS: must be"):
        load_settings(DispatcherSettings)
