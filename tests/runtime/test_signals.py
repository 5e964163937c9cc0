"""The first signal asks, the second one ends the process."""

import asyncio
import os
import signal
import subprocess
import sys

from runtime.signals import stop_on_signals


async def test_a_signal_sets_the_event_and_the_old_handler_comes_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(2):
            await stop.wait()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_second_signal_ends_the_process() -> None:
    program = """
import asyncio, os, signal
from runtime.signals import stop_on_signals

async def main():
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        await stop.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(30)

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], timeout=20, check=False)
    assert ended.returncode == -signal.SIGTERM
