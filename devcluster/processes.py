"""Child processes with a log file, an honest end and no orphans.

Everything a local cluster starts (stores, gateways, dispatchers) goes through `Process`. A child
gets a session of its own, so Ctrl-C in a terminal reaches only the parent, which then stops its
children in the order it wants. It is our own child, so its death is reaped and seen at once.
On Linux it also ends when the parent is killed (see `devcluster.guard`).
"""

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

LOOPBACK = "127.0.0.1"
POLL_INTERVAL_S = 0.02
STOP_TIMEOUT_S = 30.0
LOG_TAIL_BYTES = 4096
PORTS = (20_000, 32_000)

# The kernel ties a child to the thread that started it, not to the process. So all children are
# started by one thread that lives as long as the process does.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="devcluster-spawner")

_given: set[int] = set()
"""The ports that `free_port` gave."""


class ProcessFailed(RuntimeError):
    """A child did not come up, or ended when it should not have. Says so with its last output."""


@dataclass(frozen=True, slots=True)
class Account:
    """The user and group that a child runs as."""

    uid: int
    gid: int


@dataclass(slots=True)
class Process:
    """One child program. `start` may be called again after `stop` or `kill`.

    `log_path` gathers the output of all its lives. `account` needs a root parent. The child gets
    `env` and nothing of ours.
    """

    name: str
    argv: Sequence[str]
    log_path: Path
    env: Mapping[str, str]
    account: Account | None = None
    cwd: Path | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    parent_death_signal: signal.Signals = signal.SIGKILL
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)

    @property
    def pid(self) -> int | None:
        """The pid of the living child, else None."""
        return self._child.pid if self._child is not None and self.alive else None

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def exit_status(self) -> int | None:
        """How the last child ended (negative: by that signal); None if none ended yet."""
        return None if self._child is None else self._child.poll()

    def start(self) -> None:
        """Start the child and return at once. It may still fail: see `wait_until`."""
        if self.alive:
            raise ProcessFailed(f"{self.name} already runs with pid {self.pid}")
        self._child = _spawner.submit(self._spawn).result()

    def _spawn(self) -> subprocess.Popen[bytes]:
        uid, gid = ("-", "-") if self.account is None else (self.account.uid, self.account.gid)
        guard = Path(__file__).with_name("guard.py")
        prefix = [sys.executable, "-I", "-S", str(guard), str(os.getpid())]
        prefix += [str(int(self.parent_death_signal)), str(uid), str(gid)]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                [*prefix, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(self.env),
                cwd=self.cwd,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Poll `ready`. Raises ProcessFailed when the child ends first or the time is over."""
        deadline = time.monotonic() + timeout_s
        while True:
            is_ready = ready()
            if not self.alive:  # Also if somebody else has answered in its place.
                raise ProcessFailed(
                    f"{self.name} ended with status {self.exit_status}\n{self.log_tail()}"
                )
            if is_ready:
                return
            if time.monotonic() > deadline:
                raise ProcessFailed(
                    f"{self.name} was not ready within {timeout_s:g} s\n{self.log_tail()}"
                )
            time.sleep(POLL_INTERVAL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Ask the child to end, wait, kill it if it does not. Returns its exit status."""
        self.signal(self.stop_signal)
        return self.wait_end(timeout_s)

    def wait_end(self, timeout_s: float) -> int | None:
        """Wait for the child to end by itself, kill it if it does not. Returns its exit status."""
        if self._child is None:
            return None
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._child.wait()

    def kill(self) -> None:
        """SIGKILL the child and everything it started; return when the child is gone."""
        if self._child is None or not self.alive:
            return
        offspring = descendants(self._child.pid)
        self._child.kill()
        for pid in offspring:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._child.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal (SIGSTOP freezes, SIGCONT thaws). A child that is gone is no error."""
        if self._child is not None:
            self._child.send_signal(number)

    def log_tail(self) -> str:
        """The last output, for error messages."""
        with contextlib.suppress(FileNotFoundError), self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")
        return ""


def descendants(pid: int) -> list[int]:
    """The living children of a process and theirs. Empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "pid (name) state ppid …", and a name may hold anything, brackets too.
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found: list[int] = []
    pending = [pid]
    while pending:
        offspring = children.get(pending.pop(), [])
        found += offspring
        pending += offspring
    return found


def free_port() -> int:
    """A TCP port of the loopback address that nobody has now, and that is given only once.

    From below the range that the kernel hands to outgoing connections: else one of those could
    take it before its server does. On Linux it stays taken until this process ends, also while its
    server starts or starts again: only who sets SO_REUSEADDR, as servers do, gets in.
    """
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        if port in _given:
            continue
        holder = socket.socket()
        try:
            holder.bind((LOOPBACK, port))
        except OSError:
            holder.close()
            continue
        _given.add(port)
        if sys.platform == "linux":
            # After bind: two who look at once must not both get it.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.detach()  # Closed by the kernel, with this process.
        else:
            holder.close()
        return port


def answers_ok(port: int, path: str) -> bool:
    """Whether an HTTP server on the loopback address answers 200 to a GET of `path`."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def stop_all(processes: Sequence[Process], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Ask all to end at once, so that their waits don't add up; then see each one ended."""
    for process in processes:
        process.signal(process.stop_signal)
    for process in processes:
        process.wait_end(timeout_s)
