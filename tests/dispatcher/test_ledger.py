"""The capacity ledger: never more promised than declared less what is known to be held."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatcher.ledger import FRESH_S, KEEP_S, SILENT_S, CapacityLedger, Promise
from store.dispatch import SessionLevel
from store.messages import CapacityLevel

QUEUE, SESSION, NODE = "a" * 32, "c" * 32, "b" * 32


def report(free: int, seen: str = "0-0", session_id: str = SESSION) -> CapacityLevel:
    return CapacityLevel(session_id, NODE, QUEUE, (1,), free, seen)


def stored(free: int, session_id: str = SESSION, queue_id: str = QUEUE) -> SessionLevel:
    return SessionLevel(session_id, NODE, "d" * 32, queue_id, (1,), free)


def free(ledger: CapacityLedger) -> int:
    return ledger.slots(QUEUE).free_of(1)


def take(ledger: CapacityLedger, count: int, now: float = 0.0) -> Promise:
    for _ in range(count):
        assert ledger.slots(QUEUE).take(1) == SESSION
    return ledger.promise(SESSION, count, now)


def test_a_report_is_a_level_less_what_it_cannot_have_seen() -> None:
    ledger = CapacityLedger()
    assert ledger.report(report(5), 0.0)
    promise = take(ledger, 2)
    assert free(ledger) == 3
    ledger.granted(promise, 2)
    ledger.sent(promise, "7-1")
    assert not ledger.report(report(5, "7-0"), 0.1)
    assert free(ledger) == 3
    ledger.report(report(3, "7-1"), 0.2)
    assert free(ledger) == 3
    ledger.report(report(5, "7-1"), 0.3)
    assert free(ledger) == 5


def test_refused_claims_free_their_slots() -> None:
    ledger = CapacityLedger()
    ledger.report(report(4), 0.0)
    ledger.granted(take(ledger, 3), 1)
    assert free(ledger) == 3


def test_levels_of_postgres_know_the_grants_before_them() -> None:
    ledger = CapacityLedger()
    ledger.refresh([stored(4)], ledger.mark(), 0.0)
    first = take(ledger, 1)
    ledger.granted(first, 1)
    mark = ledger.mark()
    second = take(ledger, 1)
    ledger.granted(second, 1)
    ledger.refresh([stored(3)], mark, 1.0)
    assert free(ledger) == 2, "the level knows of the first grant, not of the second"
    ledger.sent(second, "8-0")
    ledger.report(report(4, "7-0"), 2.0)
    assert free(ledger) == 2, "this older level knows of neither"


def test_a_fresh_report_outranks_postgres_until_it_ages() -> None:
    ledger = CapacityLedger()
    ledger.report(report(0), 0.0)
    assert ledger.refresh([stored(9)], ledger.mark(), FRESH_S / 2) == ([], 0)
    assert free(ledger) == 0
    assert ledger.refresh([stored(9)], ledger.mark(), FRESH_S * 2) == ([], 1)
    assert free(ledger) == 9


def test_sessions_that_postgres_does_not_list_are_gone_unless_heard_since() -> None:
    ledger = CapacityLedger()
    ledger.report(report(1), 1.0)
    ledger.forget_closed([QUEUE], 0.5)
    assert free(ledger) == 1
    ledger.forget_closed(["e" * 32], 2.0)
    assert free(ledger) == 1
    ledger.refresh([stored(1, session_id="f" * 32)], ledger.mark(), 2.0)
    ledger.forget_closed([QUEUE], 2.0)
    assert ledger.session_count() == 1


def test_a_doubted_session_gets_nothing_until_its_next_level() -> None:
    for news in ("report", "correct", "refresh"):
        ledger = CapacityLedger()
        ledger.report(report(4), 0.0)
        ledger.doubt(SESSION)
        assert free(ledger) == 0
        if news == "report":
            ledger.report(report(4), 0.1)
        elif news == "correct":
            ledger.correct([SESSION], [stored(4)], ledger.mark(), 0.1)
        else:
            ledger.refresh([stored(4)], ledger.mark(), 0.1)
        assert free(ledger) == 4
    ledger.correct([SESSION], [], ledger.mark(), 0.2)
    assert ledger.session_count() == 0


def test_promises_nobody_confirms_lapse_and_silent_sessions_are_forgotten() -> None:
    ledger = CapacityLedger()
    ledger.report(report(4), 0.0)
    lost, open_one = take(ledger, 1), take(ledger, 1)
    ledger.granted(lost, 1)
    ledger.sent(lost, "9-0")
    ledger.lapse(KEEP_S / 2)
    assert free(ledger) == 2
    ledger.report(report(4), KEEP_S)
    ledger.lapse(KEEP_S + 0.1)
    assert free(ledger) == 3, "a claim in flight keeps its promise"
    ledger.granted(open_one, 0)
    assert free(ledger) == 4
    ledger.lapse(KEEP_S + SILENT_S + 0.1)
    assert ledger.session_count() == 0


def test_queues_of_others_are_dropped_and_sessions_may_change_queue() -> None:
    ledger = CapacityLedger()
    ledger.report(report(4), 0.0)
    ledger.refresh([stored(2, queue_id="e" * 32)], ledger.mark(), 10.0)
    assert (free(ledger), ledger.slots("e" * 32).free_of(1)) == (0, 2)
    ledger.drop_queues(lambda queue_id: queue_id == QUEUE)
    assert (ledger.session_count(), ledger.free_count()) == (0, 0)


def test_news_of_a_session_that_is_unknown_is_harmless() -> None:
    ledger = CapacityLedger()
    ledger.granted(ledger.promise(SESSION, 1, 0.0), 1)
    ledger.doubt(SESSION)
    ledger.correct([SESSION], [stored(3)], 0, 0.0)
    assert ledger.session_count() == 0


class Books(RuleBasedStateMachine):
    """A gateway and a dispatcher that exchange levels and assignments over slow streams.

    The truth is kept aside: capacity, and the attempts that are held. As long as no entry is lost
    and no promise is older than KEEP_S, the ledger must never think a session freer than it is.
    """

    CAPACITY = 4

    def __init__(self) -> None:
        super().__init__()
        self.ledger = CapacityLedger()
        self.held = 0  # leases in the truth
        self.known = 0  # of them, those that the gateway has been told of
        self.entries = 0
        self.seen = 0
        self.in_stream: list[tuple[int, int]] = []
        self.reports: list[CapacityLevel] = []
        self.claiming: list[Promise] = []
        self.unsent: list[tuple[Promise, int]] = []
        self.scans: list[tuple[int, int, float]] = []
        self.now = 0.0

    @rule(seconds=st.sampled_from([0.1, FRESH_S]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def gateway_reports(self) -> None:
        self.reports.append(report(self.CAPACITY - self.known, f"{self.seen}-0"))

    @precondition(lambda self: self.reports)
    @rule()
    def report_arrives(self) -> None:
        self.ledger.report(self.reports.pop(0), self.now)

    @rule()
    def scan_begins(self) -> None:
        self.scans.append((self.ledger.mark(), self.CAPACITY - self.held, self.now))

    @precondition(lambda self: self.scans)
    @rule()
    def scan_ends(self) -> None:
        mark, level, began = self.scans.pop(0)
        self.ledger.refresh([stored(level)], mark, began)

    @precondition(lambda self: free(self.ledger) > 0)
    @rule(count=st.integers(1, 3))
    def match(self, count: int) -> None:
        self.claiming.append(take(self.ledger, min(count, free(self.ledger))))

    @precondition(lambda self: self.claiming)
    @rule(refused=st.integers(0, 2))
    def claim(self, refused: int) -> None:
        promise = self.claiming.pop(0)
        won = min(max(0, promise.count - refused), self.CAPACITY - self.held)
        self.held += won
        self.ledger.granted(promise, won)
        if won:
            self.unsent.append((promise, won))

    @precondition(lambda self: self.unsent)
    @rule()
    def send(self) -> None:
        promise, won = self.unsent.pop(0)
        self.entries += 1
        self.in_stream.append((self.entries, won))
        self.ledger.sent(promise, f"{self.entries}-0")

    @precondition(lambda self: self.in_stream)
    @rule()
    def gateway_reads(self) -> None:
        self.seen, won = self.in_stream.pop(0)
        self.known += won

    @precondition(lambda self: self.known > 0)
    @rule()
    def finish(self) -> None:
        self.known -= 1
        self.held -= 1
        # A finish makes every level on its way too low, which is allowed.

    @invariant()
    def never_too_free(self) -> None:
        in_flight = sum(promise.count for promise in self.claiming)
        assert free(self.ledger) + in_flight <= self.CAPACITY
        assert free(self.ledger) <= max(0, self.CAPACITY - self.held)


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
