"""The conformance suite itself: its entries, its schema, its command, what it prints."""

import json
import subprocess
import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from orbit_sdk.cli.conformance import conformance
from orbit_sdk.conformance import cases
from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.checks import CheckFailed, Suite, expect_equal, masked, shown
from orbit_sdk.conformance.contract import V1, V2, VERSIONS, Contract, Version, schema_bytes
from orbit_sdk.conformance.peer import unwrapped
from orbit_sdk.conformance.report import as_json, table
from orbit_sdk.conformance.run import Finding
from orbit_sdk.conformance.target import Target
from tests.arch.tree import ROOT

CREDENTIAL = f"orbit_{'0' * 16}_{'A' * 43}"
ID = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schema_that_ships_is_the_contract(version: Version) -> None:
    """R-173: one source; the copy in the package is the same bytes."""
    written = ROOT / "schemas" / f"worker.{version.name}.json"
    assert schema_bytes(version) == written.read_bytes()


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
        Suite().of(V1)(run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("patterns", "some", "none"),
    [
        (("R-11*",), "R-110", "OP-"),
        (("OP-14",), "OP-14", "OP-30"),
        (("resuming",), "R-155", "OP-45"),
        (("batching", "pushing"), "OP-06", "R-110"),
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


def test_what_a_version_changes_nothing_about_is_tried_in_both() -> None:
    for check in all_checks():
        assert check.versions in {(), (V1, V2), (V1,), (V2,)}
        if check.phase in ("renewing", "resuming", "capacity", "lapses", "operations"):
            assert check.versions == (V1, V2)
        if check.phase in ("batching", "pushing", "negotiating"):
            assert check.versions == (V2,)


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
    assert Contract(V1).read(text)[1]


def server_frame(number: str, kind: str, **more: object) -> dict[str, object]:
    return {"protocol_version": number, "type": kind, "message_id": ID, **more}


def test_each_version_knows_its_own_frames() -> None:
    fault = {"error": {"code": "internal", "message": "An internal error occurred."}}
    for version, other in ((V1, V2), (V2, V1)):
        frame = server_frame(version.number, "error", **fault)
        assert Contract(version).read(json.dumps(frame)) == (frame, "")
        assert Contract(other).read(json.dumps(frame))[1]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("worker.drain", {"reason": "shutdown"}),
        ("task.cancel", {"attempt_id": ID, "task_id": ID, "epoch": "1", "reason": "caller"}),
    ],
)
def test_pushes_are_frames_of_v2_alone(kind: str, body: object) -> None:
    for version, right in ((V1, False), (V2, True)):
        text = json.dumps(server_frame(version.number, kind, session_id=ID, body=body))
        assert (Contract(version).read(text)[1] == "") is right


def test_the_result_of_an_only_item_is_read_like_an_answer_of_v1() -> None:
    ack = {"type": "ack", "reply_to": ID}
    lease = {"active": True}
    assert unwrapped({**ack, "body": {"results": [lease]}}) == {**ack, "body": lease}
    refused = {"error": {"code": "attempt_not_found", "message": ""}}
    answer = unwrapped({**ack, "body": {"results": [refused]}})
    assert answer == {"type": "error", "reply_to": ID, **refused}
    with pytest.raises(CheckFailed, match="number of results"):
        unwrapped({**ack, "body": {"results": [lease, lease]}})


def test_secrets_are_shown_to_nobody() -> None:
    """R-118."""
    frame = {"body": [{"lease_secret": "s", "epoch": "1"}, {"instance_secret": "s"}]}
    assert masked(frame) == {
        "body": [{"lease_secret": "(hidden)", "epoch": "1"}, {"instance_secret": "(hidden)"}]
    }
    assert len(shown("x" * 10_000)) < 3_000


def findings() -> list[Finding]:
    first, second, third, fourth = all_checks()[:4]
    frame = {"type": "ack", "reply_to": ID}
    said = (("server", frame),)
    return [
        Finding(first, V1, "pass", "", 0.1),
        Finding(first, V2, "pass", "", 0.1),
        Finding(second, None, "FAIL", "the status is 200, not 400", 0.2, frame, said),
        Finding(third, V1, "skipped", "needs --other-url", 0.0),
        Finding(fourth, V1, "pass", "", 0.1),
        Finding(fourth, V2, "FAIL", "the status is 426, not 101", 0.1),
    ]


def test_the_table_shows_what_failed_and_why() -> None:
    lines = list(table(findings()))
    text = "\n".join(lines)
    assert lines[0] == "handshake"
    assert "the status is 200, not 400" in text
    assert "tried: An upgrade that offers no subprotocol." in text
    assert f'offending: {{"type": "ack", "reply_to": "{ID}"}}' in text
    assert "needs --other-url" in text
    assert lines[-1].endswith("3 passed, 2 failed, 1 skipped")


def test_the_table_shows_the_versions_and_joins_those_that_fared_alike() -> None:
    words = [line.split()[:3] for line in table(findings()) if line.startswith("  ")]
    verdicts = [line for line in words if line[0] in ("pass", "FAIL", "skipped")]
    assert verdicts == [
        ["pass", "v1", "v2"],
        ["FAIL", "-", "R-110,"],
        ["skipped", "v1", "R-170,"],
        ["pass", "v1", "R-110,"],
        ["FAIL", "v2", "R-110,"],
    ]


def test_the_json_is_one_object_a_check() -> None:
    rows = json.loads(as_json(findings()))
    assert [row["verdict"] for row in rows] == ["pass", "pass", "fail", "skipped", "pass", "fail"]
    v1, v2 = "pulse.worker.v1", "pulse.worker.v2"
    assert [row["protocol"] for row in rows] == [v1, v2, None, v1, v1, v2]
    assert rows[2]["offending"] == {"type": "ack", "reply_to": ID}
    assert rows[2]["numbers"] == ["R-110", "OP-07"]
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--protocol", "v3"], "'v3' is not one of 'v1', 'v2'"),
        (["--revoke", "true"], "--revoke needs --spare-credential"),
        (["--leave", "true"], "--leave needs --leaving-url"),
    ],
)
def test_what_goes_together_is_told(
    arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORBIT_CREDENTIAL", CREDENTIAL)
    done = CliRunner().invoke(conformance, ["http://127.0.0.1:1", *arguments])
    assert done.exit_code == 2
    assert told in done.output


def test_what_an_operator_gives_reaches_the_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    targets: list[Target] = []

    def caught(target: Target, *_: object) -> list[Finding]:
        targets.append(target)
        return []

    monkeypatch.setattr("orbit_sdk.cli.conformance._run", caught)
    monkeypatch.setenv("ORBIT_CREDENTIAL", CREDENTIAL)
    given = {name: f"http://{name}" for name in ("other_url", "brief_url", "leaving_url")}
    for number, name in enumerate(("other_credential", "spare_credential", "brief_credential")):
        given[name] = f"orbit_{str(number) * 16}_{'A' * 43}"
    given |= {"revoke": "true", "leave": "false"}
    words = [word for name in given for word in (f"--{name.replace('_', '-')}", given[name])]
    for arguments in ([], [*words, "--slow"]):
        CliRunner().invoke(conformance, ["http://there/", *arguments])
    assert targets == [
        Target("http://there", CREDENTIAL, "default"),
        Target("http://there", CREDENTIAL, "default", slow=True, **given),  # type: ignore[arg-type]
    ]


def test_the_help_teaches_versions_codes_and_what_an_operator_gives() -> None:
    text = " ".join(CliRunner().invoke(conformance, ["--help"]).output.split())
    for said in (
        "pulse.worker.v2 where the server offers it",
        "5: the credential or the queue is refused",
        "orbit conformance --protocol v2 --only batching",
        "--revoke with --spare-credential, and --leave with --leaving-url",
    ):
        assert said in text


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
