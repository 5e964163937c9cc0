"""A whole cluster in one thread: workers, gateways, store and dispatchers, all decided by a seed.

Faults strike for a while, then stop; after that everything has to come to rest within a bound. What
must hold is checked at every event by `judge` and `overseer`, and at rest here.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from store.dispatch import Assignment, Intent
from tests.simulation.cores import ServerCore
from tests.simulation.gateway import Cluster, Node
from tests.simulation.judge import Judge
from tests.simulation.link import Link
from tests.simulation.overseer import Overseer
from tests.simulation.store import LEASE_S, Store
from tests.simulation.weather import drawn
from tests.simulation.worker import Worker
from tests.simulation.world import Violation, World, short
from tests.store.model import Model, Task

EVENTS_MAX: Final = 60_000
QUIET_WITHIN_S: Final = 90.0 + 40.0 + LEASE_S
"""The longest handler, a link that is dark and not noticed yet, and a lease that has to lapse."""
SETTLED: Final = ("SUCCEEDED", "FAILED", "CANCELLED", "NEEDS_REVIEW")
GENTLE_PAUSE_S: Final = 15.0
"""Between two cuts of one worker in a gentle run: time to connect and renew."""


class Simulation:
    """One run. `break_it` may plant a defect before anything has happened."""

    def __init__(
        self,
        seed: int,
        model: Callable[[], Model] = Model,
        break_it: Callable[["Simulation"], None] = lambda simulation: None,
    ) -> None:
        self.seed = seed
        self.world = World(seed)
        self.weather = drawn(self.world.rng)
        self.model = model()
        self.judge = Judge(self.world, self.model)
        self.overseer = Overseer(self.world, self.judge)
        self.store = Store(self.world, self.model, self.judge)
        self.cluster = Cluster(self.world, self.weather, self.store, self.judge)
        self.workers: list[Worker] = []
        self._cut_at: dict[str, float] = {}
        break_it(self)

    def run(self) -> None:
        """Until the faults have stopped and everything is at rest; raises `Violation`."""
        world, weather = self.world, self.weather
        for _ in range(weather.nodes):
            Node(self.cluster)
        for _ in range(weather.workers):
            self._new_worker()
        for _ in range(weather.tasks):
            world.at(world.rng.uniform(0.0, weather.faults_s), self._submit)
        world.at(0.05, self._dispatch)
        world.at(1.0, self._second)
        while world.now < weather.faults_s:
            self._step()
        self._heal()
        quiet_by = world.now + QUIET_WITHIN_S
        while (restless := self._restless()) is not None:
            if world.now > quiet_by:
                raise Violation(f"liveness: {restless} long after the faults have stopped")
            until = world.now + 1.0
            while world.now < until:
                self._step()
        self._look_at_rest()

    def _step(self) -> None:
        world = self.world
        world.step()
        self.overseer.look()
        if world.events > EVENTS_MAX:
            raise Violation("liveness: the simulation spins")

    # -- work -------------------------------------------------------------------------------

    def _submit(self) -> None:
        rng = self.world.rng
        now = int(self.world.now * 1000)
        start_ms = rng.choice([None, None, None, 20_000])
        deadline_ms = rng.choice([3_600_000, 3_600_000, 3_600_000, 50_000])
        task = Task(
            self.world.new_id("1"),
            rng.choice(["IDEMPOTENT", "IDEMPOTENT", "RECONCILE_ONLY"]),
            rng.randint(1, 4),
            rng.choice([0, 1000, 8000]),
            10_000,
            rng.choice([3_600_000, 3_600_000, 12_000]),
            rng.randint(-1, 1),
            now,
            now + deadline_ms,
            None if start_ms is None else now + start_ms,
        )
        self.store.submit(task)
        if self.world.strikes(self.weather.cancel):
            self.world.after(rng.choice([0.1, 3.0, 20.0]), lambda: self._cancel(task.id))

    def _cancel(self, task_id: str) -> None:
        told = self.store.cancel(task_id)
        if told is not None:
            self._tell(*told, "caller")

    def _tell(self, node_id: str, session_id: str, attempt_id: str, reason: Intent) -> None:
        """Somebody wants an attempt stopped."""
        stop = partial(Node.unwanted, session_id=session_id, attempt_id=attempt_id, reason=reason)
        self.cluster.stream(node_id, stop)

    def _dispatch(self) -> None:
        """A dispatcher's ticks."""
        self.world.after(self.world.rng.uniform(0.1, 1.0), self._dispatch)
        self._grant()

    def _submit_and_grant(self) -> None:
        self._submit()
        self._grant()

    def _grant(self) -> None:
        """Candidates and levels that may be old, and a claim that proves."""
        world, rng, store = self.world, self.world.rng, self.store
        if store.is_away:
            return
        stale = world.strikes(self.weather.stale_level)
        levels = dict(self.cluster.levels) if stale else store.levels()
        places = [sid for sid, free in levels.items() for _ in range(max(0, free))]
        if stale and levels and rng.random() < 0.3:
            places.append(rng.choice(list(levels)))
        store.model.now = int(world.now * 1000)
        ready = store.model.peek(len(places))
        rng.shuffle(places)
        pairs = [
            (task_id, session_id, world.new_id("a"))
            for task_id, session_id in zip(ready, places, strict=False)
        ]
        if not pairs:
            return
        won: dict[str, list[Assignment]] = {}
        for assignment in store.claim(pairs):
            won.setdefault(assignment.node_id, []).append(assignment)
        for node_id, assignments in won.items():
            if not world.strikes(self.weather.answer_lost):
                self.cluster.stream(node_id, partial(Node.hand_over, won=assignments))

    # -- time and faults --------------------------------------------------------------------

    def _second(self) -> None:
        world = self.world
        for node in list(self.cluster.nodes.values()):
            if node.frozen_until <= world.now:
                node.second()
        if not self.store.is_away:
            for late in self.store.sweep():
                self._tell(*late, "deadline")
            self.judge.look_at_all_over()
        if not world.healed:
            self._strike_store()
            self._strike_proxy()
            self._strike_nodes()
            self._strike_workers()
            self._keep_staffed()
        else:
            self._keep_one_of_each()
        world.at(world.now + 1.0, self._second)

    def _strike_store(self) -> None:
        world, weather, store = self.world, self.weather, self.store
        if world.strikes(weather.store_pause_per_s):
            pause_s = world.rng.choice([0.5, 3.0, 12.0, 35.0])
            world.note("store", "is away for", pause_s)
            store.away_until = world.now + pause_s
        if world.strikes(weather.gate_per_s) and not store.is_away:
            store.pause(not store.model.paused)

    def _strike_proxy(self) -> None:
        """What stands before the gateways cuts all sockets and takes no new one for a while."""
        world = self.world
        if world.strikes(self.weather.shut_per_s):
            shut_s = world.rng.choice([2.0, 12.0, 40.0])
            world.note("proxy", "takes no socket for", shut_s)
            self.cluster.shut_until = world.now + shut_s
            for worker in self.workers:
                if worker.link is not None:
                    worker.link.cut()

    def _strike_nodes(self) -> None:
        world, weather, rng = self.world, self.weather, self.world.rng
        for node in list(self.cluster.nodes.values()):
            if world.strikes(weather.node_kill_per_s):
                node.die(seen=rng.random() < 0.6)
            elif world.strikes(weather.node_freeze_per_s):
                node.freeze(rng.choice([0.5, 4.0, 10.0, 18.0]))
            elif world.strikes(weather.node_drain_per_s):
                node.drain()

    def _strike_workers(self) -> None:
        world, weather, rng = self.world, self.weather, self.world.rng
        for worker in self.workers:
            if not worker.is_alive:
                continue
            if worker.link is not None:
                self._strike_link(worker, worker.link)
            if world.strikes(weather.worker_kill_per_s):
                worker.die(seen=rng.random() < 0.6)
            elif world.strikes(weather.worker_freeze_per_s):
                worker.freeze(rng.choice([0.5, 4.0, 15.0, 40.0]))
            elif world.strikes(weather.worker_drain_per_s):
                if rng.random() < 0.7:
                    worker.drain()
                    # Work that crosses the drain: granted until the store has taken it.
                    crossing_s = weather.latency_s + weather.store_s
                    world.after(rng.uniform(0.0, crossing_s), self._submit_and_grant)
                else:
                    worker.shut_down()
            if weather.drift and rng.random() < 0.1:
                worker.drift()

    def _strike_link(self, worker: Worker, link: Link) -> None:
        world, weather, rng = self.world, self.weather, self.world.rng
        if world.strikes(weather.cut_per_s):
            last = self._cut_at.get(worker.id, -GENTLE_PAUSE_S)
            if not weather.gentle or world.now - last >= GENTLE_PAUSE_S:
                self._cut_at[worker.id] = world.now
                link.cut()
        if world.strikes(weather.dark_per_s):
            link.darken(*rng.choice([(True, True), (True, False), (False, True)]))
        if world.strikes(weather.stall_per_s):
            link.stall(rng.choice([0.5, 3.0, 12.0]))

    def _keep_staffed(self) -> None:
        """Whoever is gone is replaced some time later, as a process manager does."""
        rng = self.world.rng
        if len(self.cluster.nodes) < self.weather.nodes and rng.random() < 0.3:
            Node(self.cluster)
        alive = sum(worker.is_alive for worker in self.workers)
        if alive < self.weather.workers and rng.random() < 0.2:
            self._new_worker()

    def _new_worker(self) -> None:
        self.workers.append(Worker(self.cluster, self.overseer, self.weather.slots))

    # -- rest -------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Faults stop: the store answers, the gate is open, somebody is there to work."""
        self.world.note("faults stop")
        self.world.healed = True
        self.store.away_until = self.cluster.shut_until = 0.0
        self.store.pause(False)
        self._keep_one_of_each()

    def _keep_one_of_each(self) -> None:
        if not any(node.accepts() for node in self.cluster.nodes.values()):
            Node(self.cluster)
        if not any(worker.is_alive and not worker.core.draining for worker in self.workers):
            self._new_worker()

    def _restless(self) -> str | None:
        """What is not at rest yet."""
        for task in self.model.tasks.values():
            if task.state not in SETTLED:
                return f"{short(task.id)} is {task.state}"
        alive = [worker for worker in self.workers if worker.is_alive]
        for worker in alive:
            what = self._restless_worker(worker)
            if what is not None:
                return f"{short(worker.id)} {what}"
        live = {worker.session_id for worker in alive}
        for session in self.model.sessions.values():
            if not session.closed and session.id not in live:
                return f"{short(session.id)} is open and nobody's"
        if self.overseer.running:
            return "a handler still runs"
        return None

    def _restless_worker(self, worker: Worker) -> str | None:
        if worker.core.held or not worker.core.is_ready:
            return "holds attempts" if worker.core.held else "has no session"
        current = self.model.instances[worker.id].current
        core = self._server_core(worker.session_id)
        if current is None or current.closed or current.id != worker.session_id or core is None:
            return "has a session that is not current"
        if core.open_commands or core.held or core.free != core.capacity:
            return f"has {core.free} slots of {core.capacity} free, {core.held} held"
        if core.capacity != worker.slots or current.capacity != worker.slots:
            return f"has {worker.slots} slots and is known for {core.capacity}"
        return None

    def _server_core(self, session_id: str) -> ServerCore | None:
        for node in self.cluster.nodes.values():
            socket = node.sockets.get(session_id)
            if socket is not None and socket.core.is_ready:
                return socket.core
        return None

    def _look_at_rest(self) -> None:
        self.judge.look_at_all_over()
        if any(attempt.held for attempt in self.model.attempts.values()):
            raise Violation("INV-11b: all tasks are settled and a lease is left")
        if self.weather.gentle and self.judge.lapses + self.overseer.leases_lost:
            raise Violation("INV-22: short cuts have cost a started attempt")
