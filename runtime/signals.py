"""SIGTERM and SIGINT as an event that a process waits for.

Where: the command of a process; the rest sees only an `asyncio.Event`.
Promise: the first signal sets the event, so that the process can end in order (INV-41); a second
one ends it at once, as an operator who asks twice means it.
"""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_on_signals() -> Iterator[asyncio.Event]:
    """Inside the block the signals set the yielded event; afterwards they act as before."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.set()

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
