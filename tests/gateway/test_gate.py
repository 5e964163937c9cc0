"""The gate in front of the store: few at once while it is quick, all of them while it is slow."""

import asyncio

from gateway.gate import Gate


class Crowd:
    """Calls that stay inside until `leave` is set."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.inside = 0
        self.came = asyncio.Event()

    async def call(self, leave: asyncio.Event) -> None:
        async with self._gate.passed():
            self.inside += 1
            self.came.set()
            await leave.wait()
            self.inside -= 1


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_at_most_the_usual_number_is_inside_and_the_first_to_wait_is_next() -> None:
    crowd = Crowd(Gate(2, patience_s=3600))
    leaves = [asyncio.Event() for _ in range(4)]
    calls = [asyncio.create_task(crowd.call(leave)) for leave in leaves]
    await turns()
    assert crowd.inside == 2
    leaves[0].set()
    await turns()
    assert (crowd.inside, calls[0].done()) == (2, True)
    for leave in leaves:
        leave.set()
    await asyncio.gather(*calls)


async def test_a_call_that_waited_long_goes_beside_and_takes_no_place() -> None:
    """B-04: calls that wait for a commit cost the store nothing."""
    gate = Gate(1, patience_s=0.0)
    crowd, stay = Crowd(gate), asyncio.Event()
    calls = [asyncio.create_task(crowd.call(stay)) for _ in range(5)]
    async with asyncio.timeout(5):
        while crowd.inside < 5:
            crowd.came.clear()
            await crowd.came.wait()
    stay.set()
    await asyncio.gather(*calls)
    gate._patience_s = 3600
    stay = asyncio.Event()
    calls = [asyncio.create_task(crowd.call(stay)) for _ in range(3)]
    await turns()
    assert crowd.inside == 1
    stay.set()
    await asyncio.gather(*calls)
