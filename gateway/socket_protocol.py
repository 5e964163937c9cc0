"""The worker socket's protocol class: what a peer below the level of frames can cost is bounded.

Between uvicorn's WebSocket protocol and the socket shell. A peer that sends pings and reads no
pong, a message in endless fragments, a burst of the smallest frames: each costs bounded memory, and
the other connections of the loop get their turns in between (INV-37).
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from uvicorn import Config
from uvicorn.server import ServerState

from gateway import limits
from gateway.intake import Intake
from gateway.joined_writes import JoinedWritesProtocol
from orbit_sdk.protocol.errors import CloseCode

if TYPE_CHECKING:
    from uvicorn._types import ASGIReceiveEvent
    from websockets.frames import Frame


class SharedState(ServerState):
    """What the connections of one server share."""

    def __init__(self) -> None:
        super().__init__()
        self.intake: Final = Intake()


class WorkerSocketProtocol(JoinedWritesProtocol):
    """Joined writes, and bounds on what comes in and on what answers itself."""

    def __init__(self, config: Config, server_state: ServerState, **options: Any) -> None:
        super().__init__(config, server_state, **options)
        assert isinstance(server_state, SharedState)
        self._intake: Final = server_state.intake
        self._shares: Final[deque[bytes]] = deque()
        self._late_pong = b""

    # --- reading -------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take what has come, or what of it may be taken now, and read no more until then."""
        if self.joining.lingers:
            return
        if not self._shares:
            if self._intake.admits(len(data)):
                super().data_received(data)
                return
            self._intake.wait(self)
        size = limits.TURN_SHARE_BYTES
        self._shares.extend(data[at : at + size] for at in range(0, len(data), size))
        self.transport.pause_reading()

    @property
    def waits(self) -> bool:
        """Whether something was read and not yet taken in."""
        return bool(self._shares)

    def take_share(self) -> int:
        """Take in the next share, in a turn of the intake's."""
        if self.disconnected or self.transport.is_closing():
            self._shares.clear()
            return 0
        share = self._shares.popleft()
        super().data_received(share)
        if not (self._shares or self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()
        return len(share)

    async def receive(self) -> "ASGIReceiveEvent":
        """The next message; reading goes on only when nothing read is left."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._shares:
                self.transport.resume_reading()
        return message

    def handle_cont(self, event: "Frame") -> None:
        """One more fragment; the bytes of a message are counted below, its fragments here."""
        if self.close_sent:
            return
        if len(self.frames) >= limits.FRAGMENTS_MAX:
            self.conn.fail(CloseCode.MESSAGE_TOO_BIG, "too many fragments")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_parser_exception(self) -> None:
        """Broken framing ends the connection, and the peer is to learn by which code."""
        self.framing_is_broken = True
        super().handle_parser_exception()

    # --- answering -----------------------------------------------------------------------------

    def handle_ping(self) -> None:
        """Answer a ping. A peer that reads nothing is owed the latest pong alone (RFC 6455)."""
        self._intake.count(limits.CONTROL_FRAME_BYTES)
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._late_pong = b"".join(self.conn.data_to_send())

    def handle_pong(self, event: "Frame") -> None:
        """Note a pong; one that nobody asked for costs its time all the same."""
        self._intake.count(limits.CONTROL_FRAME_BYTES)
        super().handle_pong(event)

    def keepalive_timeout(self) -> None:
        """No pong in time. What the peer has not taken by now it never will: don't wait for it."""
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def resume_writing(self) -> None:
        """The peer reads again."""
        pong, self._late_pong = self._late_pong, b""
        if pong and not self.transport.is_closing():
            self.transport.write(pong)
        super().resume_writing()
