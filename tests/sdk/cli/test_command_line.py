"""The command line without a cluster: help, plugins, usage, exit codes, one-line errors."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import orjson
import pytest

from orbit_sdk import errors
from orbit_sdk.cli import failures, plugins
from orbit_sdk.cli.main import main
from orbit_sdk.cli.worker import find_worker
from tests.sdk.client.scripted_api import (
    CREDENTIAL,
    TASK_ID,
    Reply,
    failure,
    scripted_api,
    submitted,
    success,
    task,
)

MAIN = "from orbit_sdk.cli.main import main; main()"

Orbit = Callable[..., "Outcome"]


class Outcome:
    """What a run of the command line left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def orbit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Orbit:
    monkeypatch.setenv("ORBIT_CREDENTIAL", CREDENTIAL)

    def run(*arguments: str, url: str = "http://127.0.0.1:1") -> Outcome:
        monkeypatch.setenv("ORBIT_URL", url)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_plugins", dict)


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("worker",),
        ("task",),
        ("task", "submit"),
        ("task", "get"),
        ("task", "watch"),
        ("task", "attempts"),
        ("task", "cancel"),
        ("task", "retry"),
        ("task", "resolve"),
        ("queue",),
        ("queue", "list"),
        ("queue", "show"),
        ("queue", "create"),
        ("queue", "pause"),
        ("queue", "resume"),
        ("version",),
    ],
)
def test_every_command_explains_itself(orbit: Orbit, path: tuple[str, ...]) -> None:
    shown = orbit(*path, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: {' '.join(('orbit', *path))}")
    assert len(shown.out.splitlines()) > 4


def test_help_and_version_import_no_worker_and_no_server() -> None:
    code = (
        "import sys\n"
        "from orbit_sdk.cli.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'asyncpg', 'starlette', 'gateway', 'store', 'httpx', 'websockets'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, orbit_sdk\n"
        "heavy = {'httpx', 'websockets', 'click', 'msgspec', 'asyncio'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or len(dir(orbit_sdk)) < 10)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_exported_name_exists() -> None:
    import orbit_sdk

    for name in orbit_sdk.__all__:
        assert getattr(orbit_sdk, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = orbit_sdk.nothing


@pytest.mark.usefixtures("no_plugins")
@pytest.mark.parametrize("name", ["gateway", "dispatcher", "migrate", "dev", "app"])
def test_a_server_command_that_is_not_installed_says_how_to_get_it(orbit: Orbit, name: str) -> None:
    said = orbit(name)
    assert said.code == 2
    assert "pip install" in said.err


@pytest.mark.usefixtures("no_plugins")
def test_an_unknown_command_is_usage(orbit: Orbit) -> None:
    assert orbit("tusk").code == 2


def test_a_broken_plugin_breaks_only_itself(orbit: Orbit, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "lost": EntryPoint("lost", "no_such_module:command", plugins.PLUGIN_GROUP),
        "odd": EntryPoint("odd", "json:dumps", plugins.PLUGIN_GROUP),
        "good": EntryPoint("good", f"{__name__}:good", plugins.PLUGIN_GROUP),
    }
    monkeypatch.setattr(plugins, "_plugins", lambda: points)
    shown = orbit("--help")
    assert shown.code == 0
    assert "A plugin that works." in shown.out
    assert "no_such_module" in orbit("lost").err
    assert "not a click command" in orbit("odd").err
    assert orbit("good").code == 7


@click.command()
def good() -> int:
    """A plugin that works."""
    return 7


def test_version_as_json(orbit: Orbit) -> None:
    assert orjson.loads(orbit("version", "--json").out).keys() == {
        "orbit-sdk",
        "orbit-dispatcher",
        "python",
    }


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (failure(401, "unauthenticated"), failures.EXIT_NOT_PERMITTED, "ORBIT_CREDENTIAL"),
        (failure(403, "forbidden"), failures.EXIT_NOT_PERMITTED, "permission"),
        (failure(404, "not_found"), failures.EXIT_NOT_FOUND, "not_found"),
        (failure(409, "idempotency_conflict"), failures.EXIT_CONFLICT, "same key"),
        (failure(422, "validation_failed"), failures.EXIT_USAGE, "validation_failed"),
        (failure(500, "internal"), failures.EXIT_FAILED, "internal"),
        (Reply(200, b"<html>"), failures.EXIT_FAILED, "ORBIT_URL"),
    ],
)
def test_a_refusal_is_one_line_and_an_exit_code(
    orbit: Orbit, reply: Reply, code: int, words: str
) -> None:
    with scripted_api(reply) as api:
        said = orbit("task", "get", TASK_ID, url=api.url)
    assert said.code == code
    assert words in said.err
    assert api.url in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out


def test_no_answer_in_time_names_the_key_to_repeat(
    orbit: Orbit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orbit_sdk.client.sync_client.OPERATION_DEADLINE_S", 0.2)
    error = errors.Unavailable("unreachable", "gone\naway", details={"idempotency_key": "k1"})
    monkeypatch.setattr("orbit_sdk.client.sync_client.Client._run", _raiser(error))
    said = orbit("task", "submit", "work")
    assert said.code == failures.EXIT_UNAVAILABLE
    assert "--key k1" in said.err
    assert len(said.err.splitlines()) == 1


def _raiser(error: BaseException) -> Callable[..., None]:
    def raising(*_: object) -> None:
        raise error

    return raising


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), failures.EXIT_INTERRUPTED),
        (RuntimeError("a bug\nof ours"), failures.EXIT_FAILED),
    ],
)
def test_nothing_ends_in_a_traceback(
    orbit: Orbit,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
) -> None:
    monkeypatch.setattr("orbit_sdk.client.sync_client.Client._run", _raiser(error))
    said = orbit("queue", "list")
    assert said.code == code
    assert "Traceback" not in said.err
    assert len(said.err.strip().splitlines()) == 1


def test_payloads_come_from_text_file_and_stdin(orbit: Orbit, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text('{"from":"file"}')
    with scripted_api(success(submitted(), 201)) as api:
        shown = orbit("task", "submit", "work", "--payload", f"@{file}", "--key", "k", url=api.url)
        assert shown.out == f"{TASK_ID} WAITING (key k)\n"
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "task", "submit", "work", "--payload", "-", "--json"],
            input=b'{"from":"stdin"}',
            env={"ORBIT_URL": api.url, "ORBIT_CREDENTIAL": CREDENTIAL},
            capture_output=True,
            check=True,
        )
    assert orjson.loads(done.stdout)["id"] == TASK_ID
    assert [seen.json()["payload"]["from"] for seen in api.seen] == ["file", "stdin"]
    for bad in ("{", "@/no/such/file", "nope"):
        said = orbit("task", "submit", "work", "--payload", bad)
        assert said.code == 2
        assert "--payload" in said.err


def test_waiting_exits_by_how_the_task_ended(orbit: Orbit) -> None:
    for state, code in (("SUCCEEDED", 0), ("FAILED", 1), ("NEEDS_REVIEW", 1)):
        with scripted_api(success(submitted(), 201), success(task(state))) as api:
            shown = orbit("task", "submit", "work", "--wait", "--json", url=api.url)
        assert shown.code == code
        assert orjson.loads(shown.out)["state"] == state
    with scripted_api(success(task("RUNNING"))) as api:
        said = orbit("task", "watch", TASK_ID, "--timeout", "0", url=api.url)
    assert said.code == failures.EXIT_UNAVAILABLE
    assert said.err.startswith("RUNNING")


def test_tables_are_aligned(orbit: Orbit) -> None:
    queues = [
        {"id": "c" * 32, "name": "default", "paused": False},
        {"id": "d" * 32, "name": "q", "paused": True},
    ]
    with scripted_api(success({"items": queues, "next_cursor": None})) as api:
        assert orbit("queue", "list", url=api.url).out.splitlines() == [
            "NAME     STATE   ID",
            f"default  open    {'c' * 32}",
            f"q        paused  {'d' * 32}",
        ]


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        (None, "nowhere_at_all:app", "no module"),
        ("import not_there", "m", "needs not_there"),
        ("app = 1", "m:app", "not a Worker"),
        ("", "m", "should hold one Worker"),
        ("from orbit_sdk import Worker\na = Worker()\nb = Worker()", "m", "a, b"),
        (None, ".x:y", "not MODULE:APP"),
    ],
)
def test_a_worker_that_is_not_found_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str | None, target: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "m", raising=False)
    if source is not None:
        (tmp_path / "m.py").write_text(source)
    with pytest.raises(click.UsageError, match=words):
        find_worker(target)


def test_the_only_worker_of_a_module_needs_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_one.py").write_text(
        "from orbit_sdk import Worker\nw = again = Worker(queue='q')"
    )
    assert find_worker("only_one").queue == "q"


CHANGED = {"id": TASK_ID, "state": "RUNNING", "revision": "5", "deduplicated": False}


def test_operations_say_why_and_print_what_became_of_it(orbit: Orbit) -> None:
    with scripted_api(success(CHANGED, 202)) as api:
        said = orbit("task", "cancel", TASK_ID, "--reason", "sold out", url=api.url)
        asked = api.seen[0].json()
    assert (said.code, said.out) == (0, f"{TASK_ID} RUNNING, asked to stop\n")
    assert asked == {"reason": "sold out", "expected_revision": None}

    with scripted_api(success(CHANGED | {"state": "WAITING"})) as api:
        arguments = ("--reason", "again", "--expected", "4", "--key", "k", "--json")
        said = orbit(
            *("task", "retry", TASK_ID, *arguments, "--deadline", "2030-01-02T00:00:00Z"),
            url=api.url,
        )
    assert orjson.loads(said.out) | {"key": ""} == CHANGED | {
        "state": "WAITING",
        "revision": 5,
        "key": "",
    }
    assert api.seen[0].headers["idempotency-key"] == "k"
    assert api.seen[0].json()["deadline_at"].startswith("2030-01-02T00:00:00")


def test_a_review_needs_an_outcome_and_evidence(orbit: Orbit, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    proof.write_text('{"ref": 7}')
    resolve = ("task", "resolve", TASK_ID, "succeeded", "--reason", "seen", "--expected", "4")
    with scripted_api(success(CHANGED | {"state": "SUCCEEDED"})) as api:
        said = orbit(*resolve, "--evidence", f"@{proof}", url=api.url)
    assert (said.code, said.out) == (0, f"{TASK_ID} SUCCEEDED\n")
    sent = api.seen[0].json()
    assert (sent["outcome"], sent["evidence"]) == ("SUCCEEDED", {"ref": 7})
    assert orbit(*resolve).code == 2
    assert orbit(*resolve, "--evidence", "{").code == 2
    assert orbit("task", "resolve", TASK_ID, "maybe", "--reason", "x", "--evidence", "1").code == 2


def test_a_queue_is_paused_at_its_version(orbit: Orbit) -> None:
    mail = {"id": "c" * 32, "name": "mail", "paused": True, "control_version": "2"}
    paused = success(mail | {"deduplicated": False})
    with scripted_api(success(mail | {"paused": False, "control_version": "1"}), paused) as api:
        said = orbit("queue", "pause", "mail", "--reason", "incident", url=api.url)
    assert (said.code, said.out) == (0, "mail paused (control version 2)\n")
    assert api.seen[1].json() == {"reason": "incident", "expected_version": "1"}
    assert orbit("queue", "pause", "mail").code == 2


def test_a_lost_operation_can_be_repeated_word_for_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    details = {"idempotency_key": "k7", "expected": "3"}
    lost = errors.Unavailable("unreachable", "no answer", details=details)
    assert failures.exit_code_of(lost) == 3
    assert "--key k7 --expected 3" in capsys.readouterr().err
