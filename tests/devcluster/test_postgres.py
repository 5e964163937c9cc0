"""The embedded Postgres: crash and recovery, rights, what it leaves alone."""

import asyncio
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import psutil
import pytest

from devcluster.homes import can_run, erase_abandoned, run_as, server_account
from devcluster.postgres import EmbeddedPostgres, find_tools
from devcluster.processes import ProcessFailed
from tests.arch.tree import ROOT

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to drop rights")
SMALL = {"shared_buffers": "16MB", "max_connections": "10", "fsync": "off"}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short folder that another account can pass through, unlike pytest's own."""
    with TemporaryDirectory(prefix="orbit-postgres-", ignore_cleanup_errors=True) as name:
        path = Path(name)
        path.chmod(0o711)
        yield path


async def execute(postgres: EmbeddedPostgres, statement: str) -> None:
    connection = await asyncpg.connect(postgres.url())
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def fetch(postgres: EmbeddedPostgres, question: str) -> object:
    connection = await asyncpg.connect(postgres.url())
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


async def test_rows_survive_a_kill_and_a_new_launcher(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder / "store", settings=SMALL)
    postgres.start()
    try:
        await execute(postgres, "CREATE TABLE kept AS SELECT generate_series(1, 1001) AS n")
        idle = await asyncpg.connect(postgres.url())
        old_pid = postgres.pid
        postgres.kill()
        assert postgres.pid is None
        postgres.start()
        assert postgres.pid != old_pid
        assert await fetch(postgres, "SELECT count(*) FROM kept") == 1001
        idle.terminate()
    finally:
        postgres.stop()
    with EmbeddedPostgres(folder / "store", settings=SMALL) as again:
        assert await fetch(again, "SELECT count(*) FROM kept") == 1001


async def test_only_the_password_opens_it_and_only_over_loopback(folder: Path) -> None:
    with EmbeddedPostgres(folder / "store", settings=SMALL) as postgres:
        assert await fetch(postgres, "SHOW listen_addresses") == "127.0.0.1"
        assert await fetch(postgres, "SHOW unix_socket_directories") == ""
        wrong = postgres.url().replace(":", ":x", 2).replace("postgresql:x", "postgresql:", 1)
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(wrong)
        password = (folder / "store" / "password").read_text()
        assert password not in " ".join(psutil.Process(postgres.pid).cmdline())
        assert stat.S_IMODE((folder / "store" / "password").stat().st_mode) == 0o600
        assert stat.S_IMODE((folder / "store").stat().st_mode) == 0o700


async def test_a_second_launcher_is_refused(folder: Path) -> None:
    with (
        EmbeddedPostgres(folder / "store", settings=SMALL) as postgres,
        pytest.raises(ProcessFailed, match="another process uses"),
    ):
        EmbeddedPostgres(folder / "store").start()
    assert postgres.pid is None


def test_a_pid_file_whose_pid_is_another_program_is_no_obstacle(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder / "store", settings=SMALL).start()
    postgres.kill()
    pid_file = folder / "store" / "data" / "postmaster.pid"
    account = server_account()
    stranger = subprocess.Popen(
        ["sleep", "60"],
        **({} if account is None else {"user": account.uid, "group": account.gid}),
    )
    try:
        lines = pid_file.read_text().splitlines(keepends=True)
        pid_file.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))
        postgres.start()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        postgres.stop()


async def test_a_server_ends_with_a_killed_launcher(folder: Path) -> None:
    script = (
        "import sys, signal\n"
        "from devcluster.postgres import EmbeddedPostgres\n"
        "print(EmbeddedPostgres(sys.argv[1], settings={'fsync': 'off'}).start().pid, flush=True)\n"
        "signal.pause()\n"
    )
    launcher = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(folder / "store"), stdout=subprocess.PIPE
    )
    assert launcher.stdout is not None
    orphan = int(await launcher.stdout.readline())
    launcher.send_signal(signal.SIGKILL)
    await launcher.wait()
    # The next launcher waits for the old server's shutdown, and takes over.
    with EmbeddedPostgres(folder / "store", settings=SMALL) as postgres:
        assert postgres.pid != orphan
        assert await fetch(postgres, "SELECT 1") == 1


async def test_a_bad_setting_is_told_with_the_log(folder: Path) -> None:
    postgres = EmbeddedPostgres(folder / "store", settings={"shared_buffers": "plenty"})
    with pytest.raises(ProcessFailed, match="shared_buffers"):
        postgres.start()
    postgres.stop()


def test_an_explicit_folder_of_tools_is_the_only_one_tried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_POSTGRES_BIN", str(folder))
    with pytest.raises(ProcessFailed, match="ORBIT_POSTGRES_BIN"):
        find_tools()


@as_root
async def test_root_lends_another_account(folder: Path) -> None:
    with EmbeddedPostgres(folder / "store", settings=SMALL) as postgres:
        assert psutil.Process(postgres.pid).username() == "nobody"


@as_root
async def test_tools_out_of_the_accounts_reach_are_copied_and_no_parent_is_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    package = find_tools().parents[1]
    for tree in (package, package.with_name(package.name + ".libs")):
        if tree.exists():
            shutil.copytree(tree, closed / tree.name, symlinks=True)
    monkeypatch.setenv("ORBIT_POSTGRES_BIN", str(closed / package.name / "pginstall" / "bin"))
    with EmbeddedPostgres(folder / "store", settings=SMALL) as postgres:
        assert await fetch(postgres, "SELECT 1") == 1
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@as_root
async def test_data_out_of_the_accounts_reach_lives_elsewhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    monkeypatch.setattr("devcluster.homes.OUT_OF_REACH_ROOT", elsewhere)
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres(closed / "store", settings=SMALL) as postgres:
        assert await fetch(postgres, "SELECT 1") == 1
        assert stat.S_IMODE(closed.stat().st_mode) == 0o700
        homes = list(elsewhere.iterdir())
        shutil.rmtree(closed)
        erase_abandoned(elsewhere)
        assert list(elsewhere.iterdir()) == homes, "it is in use"
    erase_abandoned(elsewhere)
    assert not list(elsewhere.iterdir())


@as_root
def test_a_normal_user_can_launch_it_too(folder: Path) -> None:
    account = server_account()
    assert account is not None
    home = folder / "home"
    home.mkdir()
    os.chown(home, account.uid, account.gid)
    # The library needs nothing but Python, so any interpreter will do that the account can reach.
    interpreters = [sys.executable, "/usr/bin/python3"]
    check = "import sys, devcluster.postgres; assert sys.version_info >= (3, 11)"
    environment = {"PYTHONPATH": str(ROOT), "ORBIT_POSTGRES_BIN": str(find_tools())}
    reachable = [
        python
        for python in interpreters
        if can_run(["/usr/bin/env", f"PYTHONPATH={ROOT}", python, "-c", check], account)
        and can_run([str(find_tools() / "postgres"), "--version"], account)
    ]
    if not reachable:
        pytest.skip("this checkout, or any Python, is out of another account's reach")
    script = (
        "import sys\n"
        "from devcluster.postgres import EmbeddedPostgres\n"
        "with EmbeddedPostgres(sys.argv[1], settings={'fsync': 'off'}) as postgres:\n"
        "    postgres.kill()\n"
        "    postgres.start()\n"
        "print('done')\n"
    )
    done = run_as(
        [reachable[0], "-c", script, str(home / "store")], account, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
