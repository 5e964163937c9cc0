"""What the demo does once its cluster runs: three acts, and a killed gateway in the third.

1. tasks arrive at a steady rate, to see latency; 2. many arrive at once, to see throughput, and a
few slow ones that will outlive their lease; 3. tasks arrive steadily again, and in the middle of
that one gateway gets SIGKILL. A watcher follows it all in the database.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from examples.show.database import Database, Session
from examples.show.screen import Progress, Screen
from examples.show.stage import WORKERS, Stage, check_alive
from examples.show.work import SURVEYS, Work
from orbit_sdk import AsyncClient

ACT_SECONDS = 3.0
BATCHES_PER_SECOND = 50
STEADY_SHARE = 0.25
BURST_SHARE = 0.35
# How much of the third act is settled when the gateway is killed.
KILL_SHARE = 0.3
WATCH_INTERVAL_S = 0.1
CONNECT_TIMEOUT_S = 15.0
SETTLE_TIMEOUT_S = 45.0


@dataclass(frozen=True, slots=True)
class Return:
    """A worker's first session after the kill."""

    worker: str
    gateway: str
    after_s: float


@dataclass(slots=True)
class Kill:
    """The gateway that was killed, what was on it, and who came back where."""

    gateway: str
    node_id: str
    at: datetime
    sessions: int
    running: int
    returns: list[Return] = field(default_factory=list)


@dataclass(slots=True)
class Told:
    """What happened, as the demo itself knows it. Tasks go by their number in the work."""

    acknowledged: dict[int, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    steady: range = range(0)
    burst: range = range(0)
    stormy: range = range(0)
    kill: Kill | None = None
    elapsed_s: float = 0.0


class Story:
    """One run. `play` does it all and returns what happened."""

    def __init__(self, stage: Stage, work: Work, run: str, screen: Screen) -> None:
        self._stage = stage
        self._work = work
        self._run = run
        self._screen = screen
        self._told = Told()
        self._began = time.monotonic()
        self._progress = Progress(len(work.errands))
        self._sessions: list[Session] = []
        self._kill_when_settled: int | None = None
        self._seen = asyncio.Event()

    async def play(self, database: Database) -> Told:
        """Raises ProcessFailed if a worker ends by itself."""
        watcher = asyncio.create_task(self._watch(database))
        acts = asyncio.create_task(self._acts())
        try:
            done, _ = await asyncio.wait({watcher, acts}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            watcher.cancel()
            acts.cancel()
            await asyncio.gather(watcher, acts, return_exceptions=True)
        return self._told

    async def _acts(self) -> None:
        with self._screen.step("waiting for the workers to connect"):
            await self._until(lambda: len(self._open()) == WORKERS, CONNECT_TIMEOUT_S)
        self._began = time.monotonic()
        told, total = self._told, len(self._work.errands)
        # The slow ones come first in the work, and go with the burst.
        first = SURVEYS + int((total - SURVEYS) * STEADY_SHARE)
        second = first + int((total - SURVEYS) * BURST_SHARE)
        told.steady, told.burst = range(SURVEYS, first), range(first, second)
        told.stormy = range(second, total)
        async with AsyncClient(self._stage.cluster.url, self._stage.credential) as client:
            self._screen.say(f"[bold]Act 1[/] {len(told.steady)} tasks at a steady rate")
            await self._steadily(client, told.steady)
            await self._until(lambda: self._progress.settled >= len(told.steady))
            self._screen.say(
                f"[bold]Act 2[/] {len(told.burst)} tasks at once, and {SURVEYS} slow ones that "
                "outlive their lease"
            )
            await self._submit(client, [*range(SURVEYS), *told.burst])
            await self._until(lambda: self._progress.settled >= second - SURVEYS)
            self._screen.say(f"[bold]Act 3[/] {len(told.stormy)} more, while a gateway is killed")
            self._kill_when_settled = second - SURVEYS + int(len(told.stormy) * KILL_SHARE)
            await self._steadily(client, told.stormy)
        await self._until(lambda: self._progress.settled >= len(told.acknowledged))
        await self._until(lambda: self._returned() == self._expected_returns())
        told.elapsed_s = time.monotonic() - self._began

    async def _steadily(self, client: AsyncClient, numbers: range) -> None:
        """Submit in small batches, many a second; late ones catch up."""
        beats = int(ACT_SECONDS * BATCHES_PER_SECOND)
        began = time.monotonic()
        for beat in range(beats):
            part = numbers[len(numbers) * beat // beats : len(numbers) * (beat + 1) // beats]
            if part:
                await self._submit(client, part)
            await asyncio.sleep(began + (beat + 1) / BATCHES_PER_SECOND - time.monotonic())

    async def _submit(self, client: AsyncClient, numbers: Sequence[int]) -> None:
        results = await client.submit_batch(
            [self._work.submission(number, self._run) for number in numbers]
        )
        for number, result in zip(numbers, results, strict=True):
            if result.submitted is not None:
                self._told.acknowledged[number] = result.submitted.id
            else:
                self._told.refused.append(str(result.error))

    async def _until(
        self, reached: Callable[[], bool], timeout_s: float = SETTLE_TIMEOUT_S
    ) -> None:
        """Wait for something that the watcher sees. Past the time-out the checks have the word."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._seen.clear()
                    await self._seen.wait()

    # The watcher

    async def _watch(self, database: Database) -> None:
        names: dict[str, str] = self._stage.gateway_names()
        while True:
            self._sessions = await database.sessions()
            counts = await database.counts()
            self._progress = Progress(
                total=len(self._work.errands),
                accepted=counts.accepted,
                settled=counts.settled,
                waiting=counts.waiting,
                running=counts.running,
                retries=counts.retries,
                renewals=counts.renewals,
                sessions=dict(Counter(names.get(s.node_id, "?") for s in self._open())),
                elapsed_s=time.monotonic() - self._began,
            )
            if counts.accepted:
                self._screen.show(self._progress)
            check_alive(self._stage.workers)
            kill = self._told.kill
            if kill is not None:
                self._see_returns(kill, names)
            elif self._kill_when_settled is not None and counts.settled >= self._kill_when_settled:
                await self._kill_one(database, names)
            self._seen.set()
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _kill_one(self, database: Database, names: dict[str, str]) -> None:
        """SIGKILL the gateway under which an attempt has run for longest, so that it matters."""
        running = await database.running_by_node()
        node_id = next(iter(running), self._open()[0].node_id)
        gateway = self._stage.gateway(names[node_id])
        sessions = sum(session.node_id == node_id for session in self._open())
        pid, attempts = gateway.process.pid, running.get(node_id, 0)
        self._told.kill = Kill(gateway.name, node_id, await database.now(), sessions, attempts)
        gateway.kill()
        self._screen.say(
            f"[bold red]SIGKILL[/] {gateway.name} (pid {pid}): {sessions} worker session(s) and "
            f"{attempts} running attempt(s) were on it"
        )

    def _see_returns(self, kill: Kill, names: dict[str, str]) -> None:
        seen = {back.worker for back in kill.returns}
        for session in self._sessions:
            worker = self._worker_name(session)
            if session.opened_at <= kill.at or worker in seen or session.node_id == kill.node_id:
                continue
            after_s = (session.opened_at - kill.at).total_seconds()
            back = Return(worker, names.get(session.node_id, "?"), after_s)
            kill.returns.append(back)
            seen.add(worker)
            self._screen.say(
                f"[bold green]resumed[/] {worker} is on {back.gateway} {after_s:.2f} s after the "
                f"kill, by its session number {session.epoch}"
            )

    def _returned(self) -> int:
        return len(self._told.kill.returns) if self._told.kill else 0

    def _expected_returns(self) -> int:
        return self._told.kill.sessions if self._told.kill else 0

    def _worker_name(self, session: Session) -> str:
        order = list(dict.fromkeys(known.instance_id for known in self._sessions))
        return f"worker {order.index(session.instance_id) + 1}"

    def _open(self) -> list[Session]:
        return [session for session in self._sessions if not session.closed]
