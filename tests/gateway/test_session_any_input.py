"""The session core under any sequence of inputs: it never raises, and what it says is the contract.

Hypothesis drives one session with valid, broken and hostile frames, assignments, outcomes in any
order of arrival, and ends. After each step the frames sent must be valid server frames (R-013) and
the figures within their bounds (INV-12, INV-32).
"""

import json
from collections.abc import Iterable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.lanes import INTERNAL, UNAVAILABLE
from gateway.worker.actions import Action, Close, Declare, Register
from gateway.worker.attempts import Ask
from gateway.worker.session import Phase
from orbit_sdk.protocol.errors import ErrorCode
from tests.contract.oracle import Version
from tests.gateway.cores import (
    SESSION,
    an_id,
    answered,
    assignment,
    capacity,
    declared,
    done,
    finish,
    frame,
    hello,
    new_session,
    opened,
    ref,
    sent,
)

ATTEMPTS = st.integers(900, 904)
MESSAGES = st.integers(500, 510)
CODES = st.sampled_from([*[code.value for code in ErrorCode], "no-such-code"])
STATES = ["LEASED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "UNKNOWN"]
OUTCOMES = st.one_of(
    st.builds(
        lambda state, active, settled: done(
            state, active=active and state in STATES[:2], settled=settled
        ),
        st.sampled_from(STATES),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(lambda code: done(code=code), CODES),
    st.sampled_from([UNAVAILABLE, INTERNAL]),
)
SESSIONS = st.sampled_from([SESSION] * 7 + [an_id(9)])
SELDOM = st.integers(0, 15).map(lambda number: number == 0)


KINDS = ("worker.resume", "task.start", "task.renew", "task.finish")


@st.composite
def valid_frames(draw: st.DrawFn, version: Version) -> str:
    kind = draw(st.sampled_from(["worker.hello", "worker.capacity", *KINDS, *KINDS]))
    message, session_id = draw(MESSAGES), draw(SESSIONS)
    if kind == "worker.hello":
        return hello(message, draw(st.integers(1, 256)), version)
    if kind == "worker.capacity":
        slots = draw(st.integers(0, 256))
        body: object = capacity(draw(st.integers(1, 2**64 - 1)), slots, draw(st.booleans()))
    elif version == "1":
        body = draw(operations(kind))
    else:
        ids = st.fixed_dictionaries({"message_id": MESSAGES.map(an_id)})
        items = st.tuples(ids, operations(kind)).map(lambda both: both[0] | both[1])
        body = {"items": draw(st.lists(items, min_size=1, max_size=4))}
    return frame(kind, body, message, session_id, version)


@st.composite
def operations(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    if kind == "task.finish":
        return finish(draw(ATTEMPTS))
    body = ref(draw(ATTEMPTS), draw(st.sampled_from([1, 1, 1, 2])))
    return body | {"lease_secret": "A" * 43} if draw(SELDOM) else body


@st.composite
def broken_frames(draw: st.DrawFn) -> str:
    text = draw(valid_frames("1") | valid_frames("2"))
    place = draw(st.integers(0, len(text)))
    end = draw(st.integers(place, min(len(text), place + 12)))
    return text[:place] + draw(st.text(max_size=6)) + text[end:]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
HOSTILE = st.one_of(
    broken_frames(),
    json_values.map(json.dumps),
    st.text(max_size=40),
    st.integers(1, 5000).map(lambda depth: "[" * depth),
)


class AnyInput(RuleBasedStateMachine):
    version: Version = "1"

    def __init__(self) -> None:
        super().__init__()
        self.session = new_session(self.version)
        self.now = 0.0
        self.asked: list[tuple[Ask, int]] = []
        self.declared: list[Declare] = []
        self.registering = False
        self.closed = False
        self.given: set[str] = set()

    def carry_out(self, actions: Iterable[Action]) -> None:
        actions = list(actions)
        for item in sent(actions, self.version):
            assert not self.closed
            for attempt_id in assigned_in(item):
                assert self.session.phase is Phase.READY
                assert attempt_id not in self.given
                self.given.add(attempt_id)
        for action in actions:
            assert not self.closed
            if isinstance(action, Ask):
                self.asked += [(action, place) for place in range(len(action.commands))]
            elif isinstance(action, Declare):
                self.declared.append(action)
            elif isinstance(action, Register):
                self.registering = True
            elif isinstance(action, Close):
                self.closed = True
                assert action is actions[-1]

    @initialize(slots=st.integers(0, 8))
    def begins(self, slots: int) -> None:
        """Mostly inside a session, where there is more to go wrong; sometimes before hello."""
        if slots:
            text = hello(capacity=slots, version=self.version)
            self.carry_out(self.session.on_text(text, self.now))
            self.hello_is_judged("ok", False)

    @rule(data=st.data())
    def frame_arrives(self, data: st.DataObject) -> None:
        self.carry_out(self.session.on_text(data.draw(valid_frames(self.version)), self.now))

    @rule(data=st.data())
    def another_frame_arrives(self, data: st.DataObject) -> None:
        self.frame_arrives(data)

    @rule(text=HOSTILE, seldom=SELDOM)
    def hostile_text_arrives(self, text: str, seldom: bool) -> None:
        if seldom:
            self.carry_out(self.session.on_text(text, self.now))

    @precondition(lambda self: self.registering)
    @rule(code=st.one_of(st.just("ok"), CODES), draining=st.booleans())
    def a_hello_is_judged(self, code: str, draining: bool) -> None:
        self.hello_is_judged(code, draining)

    def hello_is_judged(self, code: str, draining: bool) -> None:
        self.registering = False
        self.carry_out(self.session.opened(opened(code, draining), self.now))

    @precondition(lambda self: self.asked)
    @rule(outcome=OUTCOMES, data=st.data())
    def command_is_answered(self, outcome: Any, data: st.DataObject) -> None:
        ask, item = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        self.carry_out(answered(self.session, ask, outcome, self.now, item))

    @precondition(lambda self: self.declared)
    @rule(
        slots=st.integers(0, 256),
        code=st.one_of(st.just("ok"), CODES),
        drain=st.booleans(),
        data=st.data(),
    )
    def capacity_is_answered(self, slots: int, code: str, drain: bool, data: st.DataObject) -> None:
        asked = self.declared.pop(data.draw(st.integers(0, len(self.declared) - 1)))
        self.carry_out(self.session.capacity_answered(asked, declared(slots, drain, code)))

    @rule(attempt=st.integers(900, 960))
    def assignment_arrives(self, attempt: int) -> None:
        # The outlet's rule: an attempt the session holds is not handed over again.
        if not self.session.holds(an_id(attempt)) and an_id(attempt) not in self.given:
            self.carry_out(self.session.assigned([assignment(attempt)], self.now))

    @rule(attempt=ATTEMPTS | st.integers(900, 960))
    def a_cancellation_arrives(self, attempt: int) -> None:
        self.carry_out(self.session.cancelled(an_id(attempt), "deadline"))

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.session.lapse(self.now)

    @rule(what=st.integers(0, 31))
    def something_final_happens(self, what: int) -> None:
        if what == 0:
            self.carry_out(self.session.drain_node())
        elif what == 1:
            self.carry_out(self.session.on_binary())
        elif what == 2:
            self.carry_out(self.session.end(ErrorCode.SESSION_SUPERSEDED))
        elif what == 3:
            self.session.ended()

    @invariant()
    def figures_are_within_their_bounds(self) -> None:
        session = self.session
        assert 0 <= session.free <= session.capacity <= 256
        assert session.open_commands == len(self.asked) + len(self.declared)
        if session.phase is not Phase.READY:
            assert session.free == 0
        if self.closed:
            assert session.phase is Phase.ENDED


class AnyInputV2(AnyInput):
    version: Version = "2"


def assigned_in(item: dict[str, Any]) -> list[str]:
    """The attempts that a frame of either version hands over."""
    if item["type"] != "task.assign":
        return []
    return [body["attempt_id"] for body in item["body"].get("assignments", [item["body"]])]


bounds = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyInput = AnyInput.TestCase
TestAnyInputV2 = AnyInputV2.TestCase
TestAnyInput.settings = TestAnyInputV2.settings = bounds
