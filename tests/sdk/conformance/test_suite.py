"""The conformance suite itself: its entries, its schema, its command, what it prints."""

import json
import subprocess
import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from orbit_sdk.cli.conformance import conformance
from orbit_sdk.conformance import cases
from orbit_sdk.conformance.bench import Bench, Target
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.checks import CheckFailed, Suite, expect_equal, masked, shown
from orbit_sdk.conformance.contract import Contract, schema_bytes
from orbit_sdk.conformance.report import as_json, table
from orbit_sdk.conformance.run import Finding
from tests.arch.tree import ROOT

CREDENTIAL = f"orbit_{'0' * 16}_{'A' * 43}"
ID = "0123456789abcdef0123456789abcdef"


def test_the_schema_that_ships_is_the_contract() -> None:
    """R-173: one source; the copy in the package is the same bytes."""
    assert schema_bytes() == (ROOT / "schemas" / "worker.v1.json").read_bytes()


def test_every_phase_has_checks_and_every_check_a_number() -> None:
    found = all_checks()
    assert len(found) >= 60
    assert {check.phase for check in found} == {
        module.__name__.rpartition(".")[2] for module in cases.PHASES
    }
    assert all(check.numbers and check.requirement and check.tried for check in found)
    assert [check.phase for check in found] == sorted(
        (check.phase for check in found), key=[check.phase for check in found].index
    )


async def without_a_docstring(_bench: Bench) -> None: ...


async def without_a_number(_bench: Bench) -> None:
    """Something is required.

    Something is tried.
    """


@pytest.mark.parametrize("run", [without_a_docstring, without_a_number])
def test_a_check_without_an_entry_is_refused(run: object) -> None:
    with pytest.raises(TypeError):
        Suite().check(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patterns", "some", "none"),
    [
        (("R-11*",), "R-110", "OP-"),
        (("OP-14",), "OP-14", "OP-30"),
        (("resuming",), "R-155", "OP-45"),
    ],
)
def test_checks_are_chosen_by_number_or_phase(
    patterns: tuple[str, ...], some: str, none: str
) -> None:
    chosen = [check for check in all_checks() if check.matches(patterns)]
    numbers = [number for check in chosen for number in check.numbers]
    assert 0 < len(chosen) < len(all_checks())
    assert some in numbers
    assert none not in numbers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        json.dumps({"protocol_version": "1", "type": "ack", "message_id": ID}),
        json.dumps(
            {
                "protocol_version": "1",
                "type": "error",
                "message_id": ID + "\n",
                "error": {"code": "internal", "message": ""},
            }
        ),
    ],
)
def test_what_is_no_server_frame_has_a_fault(text: str) -> None:
    assert Contract().read(text)[1]


def test_a_server_frame_has_none() -> None:
    frame = {
        "protocol_version": "1",
        "type": "error",
        "message_id": ID,
        "error": {"code": "internal", "message": "An internal error occurred."},
    }
    assert Contract().read(json.dumps(frame)) == (frame, "")


def test_secrets_are_shown_to_nobody() -> None:
    """R-118."""
    frame = {"body": [{"lease_secret": "s", "epoch": "1"}, {"instance_secret": "s"}]}
    assert masked(frame) == {
        "body": [{"lease_secret": "(hidden)", "epoch": "1"}, {"instance_secret": "(hidden)"}]
    }
    assert len(shown("x" * 10_000)) < 3_000


def findings() -> list[Finding]:
    first, second, third = all_checks()[:3]
    frame = {"type": "ack", "reply_to": ID}
    return [
        Finding(first, "pass", "", 0.1),
        Finding(second, "FAIL", "the status is 200, not 400", 0.2, frame, (("server", frame),)),
        Finding(third, "skipped", "needs --other-url", 0.0),
    ]


def test_the_table_shows_what_failed_and_why() -> None:
    lines = list(table(findings()))
    text = "\n".join(lines)
    assert lines[0] == "handshake"
    assert "the status is 200, not 400" in text
    assert "tried: An upgrade that offers no subprotocol." in text
    assert f'offending: {{"type": "ack", "reply_to": "{ID}"}}' in text
    assert "needs --other-url" in text
    assert lines[-1].endswith("1 passed, 1 failed, 1 skipped")


def test_the_json_is_one_object_a_check() -> None:
    rows = json.loads(as_json(findings()))
    assert [row["verdict"] for row in rows] == ["pass", "fail", "skipped"]
    assert rows[1]["offending"] == {"type": "ack", "reply_to": ID}
    assert rows[1]["numbers"] == ["R-110", "OP-07"]
    assert "offending" not in rows[0]


def test_a_failure_names_both_values() -> None:
    with pytest.raises(CheckFailed, match="the code is 1, not 2"):
        expect_equal(1, 2, "the code")


def test_the_worker_address_follows_the_scheme() -> None:
    target = Target("https://orbit.example/base/", CREDENTIAL, "q")
    assert target.worker_url() == "wss://orbit.example/base/v1/worker/connect"


def run_command(*arguments: str, credential: str = CREDENTIAL) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", "from orbit_sdk.cli.main import main; main()", *arguments],
        env={"ORBIT_CREDENTIAL": credential, "PATH": "", "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_no_server_is_exit_code_3() -> None:
    code, text = run_command("conformance", "http://127.0.0.1:1")
    assert (code, "http://127.0.0.1:1" in text) == (3, True)


def test_no_credential_and_no_match_are_told() -> None:
    assert run_command("conformance", credential="")[0] == 5
    code, text = run_command("conformance", "--only", "R-999")
    assert (code, "no check matches R-999" in text) == (2, True)


def test_the_list_needs_no_server() -> None:
    code, text = run_command("conformance", "--list", "--only", "OP-30")
    assert code == 0
    assert "higher_priority_goes_first" in text


def test_without_the_validator_the_command_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing: dict[str, ModuleType | None] = {"jsonschema_rs": None}
    for name, module in missing.items():
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setenv("ORBIT_CREDENTIAL", CREDENTIAL)
    done = CliRunner().invoke(conformance, ["http://127.0.0.1:1"])
    assert done.exit_code == 2
    assert "pip install 'orbit-sdk[conformance]'" in done.output
