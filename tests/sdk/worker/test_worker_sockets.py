"""A real Worker on real sockets, against the model gateway."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest

from orbit_sdk.errors import Conflict, Forbidden, OrbitError, Unauthorized, Unavailable
from orbit_sdk.protocol.frames import CapacityFrame, FinishFrame, HelloFrame, RenewFrame
from orbit_sdk.protocol.states import AttemptState, Outcome
from orbit_sdk.worker.context import TaskContext
from orbit_sdk.worker.outcomes import TaskFailed, TaskUnknown
from orbit_sdk.worker.worker import EXIT_CLEAN, EXIT_WORK_LEFT, Worker
from tests.contract.oracle import VERSIONS, Version
from tests.sdk.worker.served_gateway import CREDENTIAL, ServedGateway, served_gateway


@dataclass
class Order:
    number: int


def made_worker(gateway: ServedGateway, *, capacity: int = 4, grace_s: float = 10.0) -> Worker:
    return Worker(gateway.url, CREDENTIAL, capacity=capacity, grace_s=grace_s)


@asynccontextmanager
async def serving(worker: Worker, gateway: ServedGateway) -> AsyncIterator[asyncio.Task[int]]:
    """A worker that has a session; drained, or stopped if the test left it so, at the end."""
    task = asyncio.create_task(worker.serve())
    try:
        await gateway.ready()
        yield task
    finally:
        worker.stop()
        await asyncio.wait_for(asyncio.shield(task), 30)


def state_of(gateway: ServedGateway, attempt_id: str) -> AttemptState:
    return gateway.model.attempts[attempt_id].state


def settled(gateway: ServedGateway, attempt_id: str) -> bool:
    return state_of(gateway, attempt_id) not in (AttemptState.LEASED, AttemptState.RUNNING)


def finishes(gateway: ServedGateway) -> list[FinishFrame]:
    return [frame for frame in gateway.model.seen if isinstance(frame, FinishFrame)]


async def test_asyncio_and_blocking_handlers_run_and_report() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        threads = set()

        @worker.handler("double")
        async def double(order: Order) -> dict[str, int]:
            threads.add(threading.current_thread().name)
            return {"twice": 2 * order.number}

        @worker.handler("name")
        def name(order: Order, ctx: TaskContext) -> str:
            threads.add(threading.current_thread().name)
            return f"{order.number} {ctx.handler} {ctx.epoch} {ctx.attempt_count}"

        async with serving(worker, gateway):
            first = await gateway.assign(b'{"number":21}', "double")
            second = await gateway.assign(b'{"number":5}', "name")
            await gateway.until(lambda: settled(gateway, first) and settled(gateway, second))
        results = {f.body.ref.attempt_id: bytes(f.body.result) for f in finishes(gateway)}
        assert results == {first: b'{"twice":42}', second: b'"5 name 2 1"'}
        assert threading.current_thread().name in threads
        assert any(thread.startswith("orbit-handler") for thread in threads)
        assert set(gateway.credentials) == {f"Bearer {CREDENTIAL}"}


@pytest.mark.parametrize(
    ("what", "state", "code"),
    [
        ("none", AttemptState.SUCCEEDED, ""),
        ("bug", AttemptState.FAILED, "handler_error"),
        ("failed", AttemptState.FAILED, "no_stock"),
        ("final", AttemptState.FAILED, "fatal.no_stock"),
        ("unknown", AttemptState.UNKNOWN, "no_answer"),
        ("large", AttemptState.FAILED, "result_too_large"),
        ("strange", AttemptState.FAILED, "result_not_json"),
        ("exit", AttemptState.FAILED, "handler_error"),
        ("stop-iteration", AttemptState.FAILED, "handler_error"),
        ("self-cancelled", AttemptState.FAILED, "handler_error"),
    ],
)
@pytest.mark.parametrize("how", ["asyncio", "blocking"])
async def test_how_a_handler_ends_decides_the_report(
    how: str, what: str, state: AttemptState, code: str
) -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)

        def work(payload: str) -> object:
            match payload:
                case "bug":
                    raise KeyError("x")
                case "failed":
                    raise TaskFailed("no_stock", {"left": 0})
                case "final":
                    raise TaskFailed("no_stock", retryable=False)
                case "unknown":
                    raise TaskUnknown("no_answer")
                case "large":
                    return "x" * 300_000
                case "strange":
                    return {"f": object()}
                case "stop-iteration":
                    raise StopIteration
                case "exit":
                    raise SystemExit(3)
                case "self-cancelled":
                    raise asyncio.CancelledError
            return None

        async def work_async(payload: str) -> object:
            return work(payload)

        worker.handler("work")(work_async if how == "asyncio" else work)
        async with serving(worker, gateway):
            attempt = await gateway.assign(msgspec.json.encode(what))
            await gateway.until(lambda: settled(gateway, attempt))
        assert state_of(gateway, attempt) is state
        assert gateway.model.attempts[attempt].error_code == code
        if what == "none":
            assert bytes(finishes(gateway)[0].body.result) == b"{}"


async def test_a_payload_that_does_not_fit_never_reaches_the_handler() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        calls = []

        @worker.handler("work")
        def work(order: Order) -> None:
            calls.append(order)

        async with serving(worker, gateway):
            attempt = await gateway.assign(b'{"number":"many"}')
            await gateway.until(lambda: settled(gateway, attempt))
        assert gateway.model.attempts[attempt].error_code == "invalid_input"
        assert not calls


async def test_renewals_are_not_starved_by_a_loop_that_a_handler_blocks() -> None:
    async with served_gateway(lease_s=3.0) as gateway:
        inner = made_worker(gateway)

        @inner.handler("work")
        async def work() -> str:
            time.sleep(4)  # noqa: ASYNC251 - the fault that is tested: it blocks the loop
            return "done"

        # The worker gets a loop of its own, for the gateway lives on this one.
        code = asyncio.create_task(asyncio.to_thread(inner.run))
        await gateway.ready()
        attempt = await gateway.assign()
        await gateway.until(lambda: settled(gateway, attempt))
        assert state_of(gateway, attempt) is AttemptState.SUCCEEDED
        renewals = [f for f in gateway.model.seen if isinstance(f, RenewFrame)]
        assert len(renewals) >= 3
        inner.stop()
        assert await code == EXIT_CLEAN


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_cancelled_attempt_is_stopped_and_reported_as_cancelled(version: Version) -> None:
    """OP-03: by the answer to a renewal, for v1 or where a pushed frame was lost."""
    async with served_gateway(lease_s=3.0, version=version) as gateway:
        worker = made_worker(gateway)
        cleaned = []

        @worker.handler("asyncio")
        async def endless(ctx: TaskContext) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(ctx.cancelled.is_set())

        @worker.handler("blocking")
        def blocking(ctx: TaskContext) -> None:
            assert ctx.cancelled.wait(20)
            assert ctx.remaining() == 0
            ctx.raise_if_cancelled()

        async with serving(worker, gateway):
            attempts = [await gateway.assign(handler=h) for h in ("asyncio", "blocking")]
            await gateway.until(
                lambda: all(state_of(gateway, a) is AttemptState.RUNNING for a in attempts)
            )
            for attempt in attempts:
                gateway.model.cancel(attempt)
            await gateway.until(lambda: all(settled(gateway, a) for a in attempts))
        assert {state_of(gateway, a) for a in attempts} == {AttemptState.CANCELLED}
        assert cleaned == [True]
        word = Outcome.FAILED if version == "1" else Outcome.CANCELLED
        assert {frame.body.outcome for frame in finishes(gateway)} == {word}
        assert {frame.body.error_code for frame in finishes(gateway)} == {"cancelled"}


async def test_a_pushed_cancellation_stops_a_handler_without_any_renewal() -> None:
    """R-127, R-128."""
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        cleaned = []
        begun = asyncio.Event()

        @worker.handler("work")
        async def endless(ctx: TaskContext) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(ctx.cancelled.is_set())

        async with serving(worker, gateway):
            attempt = await gateway.assign()
            await begun.wait()
            gateway.model.cancel(attempt)
            await gateway.say(gateway.model.cancellation(attempt))
            await gateway.until(lambda: settled(gateway, attempt))
        assert state_of(gateway, attempt) is AttemptState.CANCELLED
        assert cleaned == [True]
        assert not [frame for frame in gateway.model.seen if isinstance(frame, RenewFrame)]
        assert finishes(gateway)[0].body.outcome is Outcome.CANCELLED


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_worker_speaks_the_best_version_that_the_server_knows(version: Version) -> None:
    """R-055: and works on with an older server."""
    async with served_gateway(version=version) as gateway:
        worker = made_worker(gateway)
        worker.handler("work")(lambda: "done")
        async with serving(worker, gateway):
            attempt = await gateway.assign()
            await gateway.until(lambda: settled(gateway, attempt))
            assert gateway.socket.subprotocol == f"pulse.worker.v{version}"
        assert state_of(gateway, attempt) is AttemptState.SUCCEEDED


async def test_what_is_due_together_travels_together() -> None:
    """OP-06: assigned in one frame, started in one, and finished in few.

    How many turns of the loop the handlers take to end is the machine's affair; that their reports
    share frames is ours.
    """
    async with served_gateway() as gateway:
        worker = made_worker(gateway, capacity=64)
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work() -> str:
            await go_on.wait()
            return "done"

        async with serving(worker, gateway):
            before = gateway.model.messages
            await gateway.say(gateway.model.assign_many(64))
            attempts = list(gateway.model.attempts)
            await gateway.until(
                lambda: all(state_of(gateway, a) is AttemptState.RUNNING for a in attempts)
            )
            assert gateway.model.messages == before + 1
            go_on.set()
            await gateway.until(lambda: all(settled(gateway, a) for a in attempts))
            assert gateway.model.messages <= before + 1 + 64 // 2
        assert len(finishes(gateway)) == 64


async def test_a_node_that_leaves_is_left_and_what_runs_goes_on_elsewhere() -> None:
    """R-129."""
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work() -> str:
            await go_on.wait()
            return "done"

        async with serving(worker, gateway):
            attempt = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
            first = gateway.model.session_id
            await gateway.say(gateway.model.drain())
            gateway.model.node_draining = False
            await gateway.until(lambda: gateway.model.session_id not in ("", first))
            go_on.set()
            await gateway.until(lambda: settled(gateway, attempt))
        assert state_of(gateway, attempt) is AttemptState.SUCCEEDED
        assert gateway.model.attempts[attempt].session_id != first


async def test_a_cut_connection_is_resumed_and_costs_no_attempt() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        go_on = threading.Event()

        @worker.handler("work")
        def work() -> str:
            assert go_on.wait(20)
            return "done"

        async with serving(worker, gateway):
            attempt = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
            first = gateway.model.session_id
            gateway.socket.transport.abort()
            await gateway.until(lambda: gateway.model.session_id not in ("", first))
            go_on.set()
            await gateway.until(lambda: settled(gateway, attempt))
        assert state_of(gateway, attempt) is AttemptState.SUCCEEDED
        hellos = [f.body for f in gateway.model.seen if isinstance(f, HelloFrame)]
        assert len({(h.instance_id, h.instance_secret) for h in hellos}) == 1
        assert len(hellos) == 2


async def test_without_a_gateway_work_stops_before_the_lease_ends() -> None:
    async with served_gateway(lease_s=3.0) as gateway:
        worker = made_worker(gateway)
        stopped = asyncio.Event()

        @worker.handler("work")
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        async with serving(worker, gateway):
            attempt = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
            await gateway.close()
            async with asyncio.timeout(5):
                await stopped.wait()
            assert gateway.model.clock() < gateway.model.attempts[attempt].lease_until
            await gateway.open()
            await gateway.ready()
            assert not finishes(gateway), "nothing can be said of a handler that was cut short"


async def test_draining_says_so_and_lets_running_work_finish() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work() -> str:
            await go_on.wait()
            return "done"

        async with serving(worker, gateway) as served:
            running = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, running) is AttemptState.RUNNING)
            worker.stop()
            await gateway.until(lambda: gateway.model.draining)
            late = await gateway.assign()
            go_on.set()
            assert await served == EXIT_CLEAN
        assert state_of(gateway, running) is AttemptState.SUCCEEDED
        await gateway.until(lambda: state_of(gateway, late) is AttemptState.EXPIRED)
        drains = [f.body.drain for f in gateway.model.seen if isinstance(f, CapacityFrame)]
        assert all(not before or after for before, after in pairwise(drains))


async def test_a_second_stop_ends_asyncio_handlers_and_says_so() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)

        @worker.handler("work")
        async def work() -> None:
            await asyncio.Event().wait()

        async with serving(worker, gateway) as served:
            attempt = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
            worker.stop()
            worker.stop()
            assert await served == EXIT_CLEAN
        assert gateway.model.attempts[attempt].error_code == "worker_stopped"


async def test_a_blocking_handler_that_will_not_stop_is_left_to_its_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orbit_sdk.worker.worker.SETTLE_TIMEOUT_S", 0.2)
    async with served_gateway() as gateway:
        worker = made_worker(gateway, grace_s=0.1)
        release = threading.Event()

        @worker.handler("work")
        def work() -> None:
            release.wait(20)

        async with serving(worker, gateway) as served:
            attempt = await gateway.assign()
            await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
            worker.stop()
            assert await served == EXIT_WORK_LEFT
            release.set()
        assert not finishes(gateway)


@pytest.mark.parametrize("status", [401, 403])
async def test_a_first_connect_that_is_refused_ends_the_worker(status: int) -> None:
    async with served_gateway() as gateway:
        gateway.refuse_with = status
        worker = made_worker(gateway)
        worker.handler("work")(lambda: None)
        with pytest.raises(Exception, match=str(status)) as caught:
            await asyncio.wait_for(worker.serve(), 10)
        assert getattr(caught.value, "status", None) == status


@pytest.mark.parametrize("status", [401, 403, 503])
async def test_a_refusal_after_a_welcome_only_delays(status: int) -> None:
    """R-153: also a credential that is refused for now is asked for anew."""
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        worker.handler("work")(lambda: "done")
        async with serving(worker, gateway):
            gateway.refuse_with = status
            gateway.socket.transport.abort()
            async with asyncio.timeout(10):
                await gateway.refused.wait()
            gateway.refuse_with = None
            await gateway.ready()
            attempt = await gateway.assign()
            await gateway.until(lambda: settled(gateway, attempt))


async def test_a_credential_is_asked_for_before_every_connect() -> None:
    async with served_gateway() as gateway:
        handed_out: list[str] = []

        def fresh() -> str:
            handed_out.append(f"orbit_{len(handed_out):016x}_{'s' * 43}")
            return handed_out[-1]

        worker = Worker(gateway.url, fresh)
        worker.handler("work")(lambda: None)
        async with serving(worker, gateway):
            gateway.socket.transport.abort()
            await gateway.until(lambda: not gateway.model.session_id)
            await gateway.ready()
        assert len(handed_out) >= 3
        assert gateway.credentials == [f"Bearer {text}" for text in handed_out]


async def test_a_cancelled_serve_leaves_nothing_behind() -> None:
    async with served_gateway() as gateway:
        worker = made_worker(gateway)
        worker.handler("work")(lambda: None)
        task = asyncio.create_task(worker.serve())
        await gateway.ready()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert "orbit-worker-io" not in {thread.name for thread in threading.enumerate()}


async def test_what_cannot_work_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="no handlers"):
        await Worker(credential=CREDENTIAL).serve()
    worker = Worker(credential=CREDENTIAL, capacity=0)
    worker.handler("work")(lambda: None)
    with pytest.raises(ValueError, match="capacity"):
        await worker.serve()
    unnamed = Worker()
    unnamed.handler("work")(lambda: None)
    with pytest.raises(Unauthorized, match="ORBIT_CREDENTIAL"):
        await unnamed.serve()


async def test_a_failure_of_the_connection_itself_stops_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served_gateway(lease_s=3.0) as gateway:
        worker = made_worker(gateway)
        stopped = asyncio.Event()

        @worker.handler("work")
        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug of ours")

        task = asyncio.create_task(worker.serve())
        await gateway.ready()
        attempt = await gateway.assign()
        await gateway.until(lambda: state_of(gateway, attempt) is AttemptState.RUNNING)
        monkeypatch.setattr("orbit_sdk.worker.session.SessionCore.tick", broken)
        with pytest.raises(Unavailable, match="a bug of ours"):
            await asyncio.wait_for(task, 10)
        async with asyncio.timeout(1):
            await stopped.wait()


@pytest.mark.parametrize(
    ("code", "kind"),
    [("instance_conflict", Conflict), ("queue_unavailable", Conflict), ("forbidden", Forbidden)],
)
async def test_a_first_hello_that_is_refused_ends_the_worker(
    code: str, kind: type[OrbitError]
) -> None:
    async with served_gateway() as gateway:
        gateway.model.trouble = lambda frame: code
        worker = made_worker(gateway)
        worker.handler("work")(lambda: None)
        with pytest.raises(kind, match=code):
            await asyncio.wait_for(worker.serve(), 10)


async def test_a_credential_function_that_fails_later_only_delays() -> None:
    async with served_gateway() as gateway:
        calls = 0

        def shaky() -> str:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise OSError("the vault is away")
            return CREDENTIAL

        worker = Worker(gateway.url, shaky)
        worker.handler("work")(lambda: None)
        async with serving(worker, gateway):
            gateway.socket.transport.abort()
            await gateway.until(lambda: not gateway.model.session_id)
            await gateway.ready()
        assert calls >= 4
