"""The embedded Valkey: crash and return, its password."""

from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from devcluster.processes import ProcessFailed
from devcluster.valkey import EmbeddedValkey, find_server


@pytest.mark.parametrize("appendonly", [True, False])
def test_it_comes_back_after_a_kill_on_the_same_port(tmp_path: Path, appendonly: bool) -> None:
    with EmbeddedValkey(tmp_path / "store", appendonly=appendonly) as valkey:
        url = valkey.url()
        with redis.Redis.from_url(url) as client:
            for number in range(100):
                client.set(f"key-{number}", number)
        valkey.kill()
        assert valkey.pid is None
        valkey.start()
        assert valkey.url() == url
        with redis.Redis.from_url(url) as client:
            assert client.dbsize() == (100 if appendonly else 0)


def test_only_the_password_opens_it(tmp_path: Path) -> None:
    with EmbeddedValkey(tmp_path / "store") as valkey:
        with (
            redis.Redis(port=valkey.port, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()
        password = (tmp_path / "store" / "password").read_text()
        arguments = Path(f"/proc/{valkey.pid}/cmdline")
        assert not arguments.exists() or password not in arguments.read_text()


def test_a_second_launcher_is_refused(tmp_path: Path) -> None:
    with (
        EmbeddedValkey(tmp_path / "store"),
        pytest.raises(ProcessFailed, match="another process uses"),
    ):
        EmbeddedValkey(tmp_path / "store").start()


def test_an_explicit_program_is_the_only_one_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_VALKEY_BIN", str(tmp_path / "nothing"))
    with pytest.raises(ProcessFailed, match="ORBIT_VALKEY_BIN"):
        find_server()
