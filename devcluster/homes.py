"""Where an embedded store keeps its files, and as whom it runs.

Postgres refuses to run as root, so a root parent lends it the account `nobody` (or the one named by
ORBIT_STORE_ACCOUNT). Promises: nothing outside the store's own folder changes owner or mode, ever;
in particular no parent folder is opened up. If the account cannot reach the wanted folder, the
store lives under /var/lib/orbit-dev instead, and is cleared away after that folder is gone.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from devcluster.processes import Account, ProcessFailed

OUT_OF_REACH_ROOT = Path("/var/lib/orbit-dev")
BELONGS_TO = "belongs-to"


def server_account() -> Account | None:
    """The account to drop to: None unless we are root."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam(os.environ.get("ORBIT_STORE_ACCOUNT", "nobody"))
    return Account(entry.pw_uid, entry.pw_gid)


def can_run(argv: list[str], account: Account | None) -> bool:
    """Whether the account can run a program to a successful end."""
    try:
        return run_as(argv, account, check=False).returncode == 0
    except OSError:
        return False


def run_as(
    argv: list[str],
    account: Account | None,
    *,
    env: dict[str, str] | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a short program as the account. Raises ProcessFailed with its output if `check`."""
    identity: dict[str, object] = {}
    if account is not None:
        identity = {"user": account.uid, "group": account.gid, "extra_groups": []}
    done = subprocess.run(  # type: ignore[call-overload]
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        cwd="/",
        check=False,
        **identity,
    )
    if check and done.returncode != 0:
        raise ProcessFailed(f"{argv[0]} ended with status {done.returncode}\n{done.stdout}")
    return done  # type: ignore[no-any-return]


def store_home(wanted: Path, account: Account | None) -> Path:
    """Make the store's own folder (0700, owned by the account) and return its real place."""
    wanted = wanted.absolute()
    wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is None:
        return wanted
    own(wanted, account)
    if can_run(["/bin/sh", "-c", 'cd "$0"', str(wanted)], account):
        return wanted
    digest = hashlib.sha256(os.fsencode(wanted)).hexdigest()[:16]
    OUT_OF_REACH_ROOT.mkdir(mode=0o755, exist_ok=True)
    erase_abandoned(OUT_OF_REACH_ROOT)
    home = OUT_OF_REACH_ROOT / f"{wanted.name}-{digest}"
    home.mkdir(mode=0o700, exist_ok=True)
    (home / BELONGS_TO).write_text(str(wanted))
    own(home, account)
    return home


def erase_abandoned(root: Path) -> None:
    """Delete the homes under `root` whose wanted folder is gone and that nobody runs."""
    for mark in root.glob(f"*/{BELONGS_TO}"):
        # Another process may be clearing away the same ones.
        with contextlib.suppress(FileNotFoundError, ProcessFailed):
            wanted = Path(mark.read_text())
            if not wanted.exists():
                with lock_home(mark.parent):
                    erase(mark.parent)


def own(path: Path, account: Account | None) -> None:
    if account is not None:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def lock_home(home: Path) -> IO[bytes]:
    """Hold the folder until the returned file is closed or this process ends.

    Raises ProcessFailed if another process holds it.
    """
    lock = (home / "launcher.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ProcessFailed(f"another process uses {home}") from None
    return lock


def random_secret() -> str:
    """32 random bytes as base64url."""
    return secrets.token_urlsafe(32)


def kept_secret(
    path: Path, account: Account | None = None, make: Callable[[], str] = random_secret
) -> str:
    """The secret of a 0600 file; made the first time."""
    if not path.exists():
        secret = make()
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secret)
        own(fresh, account)
        fresh.rename(path)
    return path.read_text()


def erase(home: Path) -> None:
    """Delete a store's folder with all its data."""
    shutil.rmtree(home, ignore_errors=True)
