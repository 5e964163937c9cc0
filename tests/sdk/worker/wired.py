"""A session core wired to the model gateway without any delay, on a clock the test moves."""

from itertools import count

import msgspec

from orbit_sdk.protocol.frames import Capability, ClientFrame, ServerFrame
from orbit_sdk.worker.effects import Effect, Send
from orbit_sdk.worker.outcomes import Report, succeeded
from orbit_sdk.worker.session import Identity, SessionCore
from tests.contract.oracle import Version
from tests.sdk.worker.model_gateway import ModelAttempt, ModelGateway
from tests.sdk.worker.versions import DIALECTS, frame_id_of, operations_in

LEASE_S = 30.0
MARGIN_S = 3.0


class Wired:
    """`effects` holds what the core asked for, sends left out; `sent` every frame it sent, those of
    v2 as the frames of v1 that they stand for. Operations are flushed after every call.

    While `silent` is true the gateway hears everything and its answers are lost.
    """

    def __init__(self, slots: int = 4, share: float = 0.0, version: Version = "1") -> None:
        self.now = 100.0
        self.version: Version = version
        self.gateway = ModelGateway(lambda: self.now, LEASE_S, version)
        ids = count(1)
        identity = Identity("1" * 32, "A" * 43, "b" * 32, (Capability("work", "1", "1"),))
        self.core = SessionCore(
            identity, slots, lambda: f"{next(ids):08x}{'f' * 24}", lambda: share
        )
        self.effects: list[Effect] = []
        self.sent: list[ClientFrame] = []
        self.carriers: dict[str, str] = {}
        self.silent = False
        self.deaf = False

    def connect(self) -> None:
        self.apply(self.core.opened(DIALECTS[self.version], self.now))

    def cut(self) -> None:
        self.gateway.socket_closed(self.gateway.session_id)
        self.apply(self.core.closed())

    def reconnect(self) -> None:
        self.cut()
        self.connect()

    def assign(
        self, handler: str = "work", task_id: str | None = None, deadline_s: float = 86_400
    ) -> ModelAttempt:
        self.receive(self.gateway.assign(handler, task_id=task_id, deadline_s=deadline_s))
        return list(self.gateway.attempts.values())[-1]

    def receive(self, data: bytes | ServerFrame) -> None:
        text = data if isinstance(data, bytes) else self.gateway.out(self._addressed(data))
        self.apply(self.core.received(DIALECTS[self.version].read(text), self.now))

    def _addressed(self, frame: ServerFrame) -> ServerFrame:
        """An answer to an operation, as one to the first frame that carried it."""
        reply_to = getattr(frame, "reply_to", None)
        if not isinstance(reply_to, str):
            return frame
        return msgspec.structs.replace(frame, reply_to=self.carriers.get(reply_to, reply_to))

    def finish(self, attempt: ModelAttempt, report: Report | None = None) -> None:
        report = report or succeeded({"ok": True})
        self.apply(self.core.finished(attempt.attempt_id, report, self.now))

    def abandon(self, attempt: ModelAttempt) -> None:
        self.apply(self.core.abandoned(attempt.attempt_id, self.now))

    def pass_to(self, when: float) -> None:
        """Let time pass, doing whatever is due on the way."""
        while self.core.next_due() <= when:
            self.now = max(self.now, self.core.next_due())
            self.apply(self.core.tick(self.now))
        self.now = when

    def apply(self, effects: list[Effect]) -> None:
        for effect in [*effects, *self.core.flush()]:
            if not isinstance(effect, Send):
                self.effects.append(effect)
                continue
            operations = operations_in(effect.frame, self.version)
            self.sent += operations
            if self.version == "2":
                for frame in operations:
                    self.carriers.setdefault(frame.message_id, frame_id_of(effect.frame))
            if self.deaf:
                continue
            for answer in self.gateway.receive(effect.frame):
                if not self.silent:
                    self.receive(answer)

    def taken(self, kind: type[Effect]) -> list[Effect]:
        """Effects of one kind so far, taken off the list."""
        found = [effect for effect in self.effects if isinstance(effect, kind)]
        self.effects = [effect for effect in self.effects if not isinstance(effect, kind)]
        return found

    def frames_of(self, kind: type) -> list[ClientFrame]:
        return [frame for frame in self.sent if isinstance(frame, kind)]
