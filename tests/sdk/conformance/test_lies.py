"""The suite notices a server that lies: each lie is found by the check that stands for its rule."""

import asyncio
import json
from collections.abc import Callable
from copy import deepcopy
from datetime import timedelta

import pytest
from click import ClickException
from click.testing import CliRunner

from devcluster.cluster import LocalCluster
from orbit_sdk.cli.conformance import conformance
from orbit_sdk.conformance import peer
from orbit_sdk.conformance.bench import wire_time
from orbit_sdk.conformance.cases import (
    all_checks,
    flooding,
    leaving,
    lifetimes,
    revocation,
    slowness,
)
from orbit_sdk.conformance.contract import V1, V2, Version
from orbit_sdk.conformance.peer import instant
from orbit_sdk.conformance.report import as_json, table
from orbit_sdk.conformance.run import Finding, NotOffered, run
from orbit_sdk.conformance.target import Target
from tests.sdk.conformance.app import app_with_every_scope
from tests.sdk.conformance.liar import Frame, Liar, lying_gateway

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SHORT_S = 5.0
"""How long the suite waits here for what a liar keeps to itself."""
AT_ONCE = 12


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "ANSWER_S", SHORT_S)
    monkeypatch.setattr(peer, "ASSIGN_S", SHORT_S)
    monkeypatch.setattr(flooding, "PATIENCE_S", SHORT_S)


# --- lies of either version ----------------------------------------------------------------------


def unknown_field(frame: Frame) -> Frame:
    return {**frame, "more": 1}


def another_session(frame: Frame) -> Frame:
    known = frame["type"] == "ack"
    return {**frame, "session_id": "0" * 32} if known else frame


def silent(frame: Frame) -> Frame | None:
    return None if frame["type"] == "ack" else frame


def no_close_reason(frame: Frame) -> Frame:
    if frame["type"] != "error":
        return frame
    return {**frame, "error": {**frame["error"], "code": "internal"}}


def epochs_stand_still(frame: Frame) -> Frame:
    if frame["type"] != "worker.welcome":
        return frame
    return {**frame, "body": {**frame["body"], "epoch": "1"}}


def never_draining(frame: Frame) -> Frame:
    if "draining" not in frame.get("body", {}):
        return frame
    return {**frame, "body": {**frame["body"], "draining": False}}


def deaf_to_drain(frame: Frame) -> Frame:
    """It says that it drains, and the gateway never hears of it."""
    if frame["type"] != "worker.capacity":
        return frame
    return {**frame, "body": {**frame["body"], "drain": False}}


def always_draining(frame: Frame) -> Frame:
    if frame["type"] != "ack" or "draining" not in frame["body"]:
        return frame
    return {**frame, "body": {**frame["body"], "draining": True}}


def leases_end_early(frame: Frame) -> Frame:
    """Who drains is told to stop: of every lease it is said that it is not extended."""
    text = json.dumps(frame).replace('"active": true', '"active": false')
    told: Frame = json.loads(text)
    return told


def rate_limited(frame: Frame) -> bool:
    return frame["type"] == "error" and bool(frame["error"]["code"] == "rate_limited")


def hides_refusals(frame: Frame) -> Frame | None:
    return None if rate_limited(frame) else frame


def refuses_as_malformed(frame: Frame) -> Frame:
    if not rate_limited(frame):
        return frame
    return {**frame, "error": {**frame["error"], "code": "bad_frame"}}


def refuses_renewals(frame: Frame) -> Frame:
    if '"operation": "renew"' not in json.dumps(frame):
        return frame
    told = {name: item for name, item in frame.items() if name != "body"}
    return {**told, "type": "error", "error": {"code": "rate_limited", "message": ""}}


def everything_is_a_repeat(frame: Frame) -> Frame:
    text = json.dumps(frame).replace('"deduplicated": false', '"deduplicated": true')
    told: Frame = json.loads(text)
    return told


def lives(seconds: float) -> Callable[[Frame], Frame]:
    """Says that sessions live for so long."""

    def told(frame: Frame) -> Frame:
        body = frame.get("body", {})
        if frame["type"] != "worker.welcome":
            return frame
        ends = instant(body["server_time"]) + timedelta(seconds=seconds)
        return {**frame, "body": {**body, "expires_at": wire_time(ends)}}

    return told


# --- lies of v2 ----------------------------------------------------------------------------------


def results(frame: Frame) -> list[Frame]:
    found: list[Frame] = frame["body"].get("results", []) if frame["type"] == "ack" else []
    return found


def with_results(frame: Frame, told: list[Frame]) -> Frame:
    return {**frame, "body": {"results": told}}


def another_order(frame: Frame) -> Frame:
    return with_results(frame, results(frame)[::-1]) if results(frame) else frame


def one_result_short(frame: Frame) -> Frame:
    return with_results(frame, results(frame)[:-1]) if len(results(frame)) > 1 else frame


def one_bad_item_spoils_all(frame: Frame) -> Frame:
    errors = [result for result in results(frame) if "error" in result]
    return with_results(frame, errors[:1] * len(results(frame))) if errors else frame


def nobody_is_refused(frame: Frame) -> Frame:
    good = [result for result in results(frame) if "error" not in result]
    if not good:
        return frame
    return with_results(frame, [r if "error" not in r else good[0] for r in results(frame)])


def nothing_is_a_repeat(frame: Frame) -> Frame:
    told = deepcopy(results(frame))
    for result in told:
        if "deduplicated" in result:
            result["deduplicated"] = False
    return with_results(frame, told) if told else frame


def receipts_are_written_anew(frame: Frame) -> Frame:
    told = deepcopy(results(frame))
    for result in told:
        if result.get("deduplicated"):
            result["receipt"]["task_revision"] = "999"
    return with_results(frame, told) if told else frame


def answers_as_in_v1(frame: Frame) -> Frame:
    return {**frame, "body": results(frame)[0]} if results(frame) else frame


def number_of_v1(frame: Frame) -> Frame:
    return {**frame, "protocol_version": "1"}


def takes_any_batch(frame: Frame) -> Frame:
    if frame["type"] != "error" or "reply_to" not in frame:
        return frame
    told = {name: item for name, item in frame.items() if name != "error"}
    return with_results({**told, "type": "ack"}, [{"error": frame["error"]}])


def pushes_nothing(frame: Frame) -> Frame | None:
    return None if frame["type"] == "task.cancel" else frame


def pushes_another_attempt(frame: Frame) -> Frame:
    if frame["type"] != "task.cancel":
        return frame
    return {**frame, "body": {**frame["body"], "attempt_id": "0" * 32}}


def everything_is_the_caller(frame: Frame) -> Frame:
    if frame["type"] != "task.cancel":
        return frame
    return {**frame, "body": {**frame["body"], "reason": "caller"}}


def stopped_is_failed(frame: Frame) -> Frame:
    """What a worker says of the outcome CANCELLED is handed on as a failure."""
    told = deepcopy(frame)
    if told["type"] == "task.finish":
        for item in told["body"]["items"]:
            if item["outcome"] == "CANCELLED":
                item["outcome"] = "FAILED"
    return told


def assigns_twice(frame: Frame) -> Frame:
    if frame["type"] != "task.assign":
        return frame
    return {**frame, "body": {"assignments": frame["body"]["assignments"] * 2}}


def resumes_nothing(frame: Frame) -> Frame:
    told = deepcopy(results(frame))
    for result in told:
        if "active" in result:
            result["active"] = False
    return with_results(frame, told) if told else frame


LIES: list[tuple[Liar, Version, str, str]] = [
    (Liar(unknown_field), V1, "welcome", "not in the schema"),
    (Liar(unknown_field), V2, "welcome", "not in the schema"),
    (Liar(another_session), V1, "update_is_acknowledged", "R-014"),
    (Liar(silent), V1, "update_is_acknowledged", "no frame came"),
    (Liar(no_close_reason), V1, "second_hello_in_a_session", "'internal', not 'bad_frame'"),
    (Liar(epochs_stand_still), V1, "session_epoch_grows", "the epoch before was 1"),
    (Liar(never_draining), V1, "drain_is_one_way", "draining is False, not True"),
    (Liar(leases_end_early), V1, "drain_lets_leases_live", "the lease's active is False"),
    (
        Liar(always_draining, deaf_to_drain),
        V2,
        "drain_takes_nothing_and_finishes",
        "no frame came",
    ),
    (Liar(hides_refusals), V2, "commands_have_a_bound", "no frame came"),
    (Liar(refuses_as_malformed), V2, "commands_have_a_bound", "'bad_frame', not 'rate_limited'"),
    (Liar(refuses_renewals), V1, "commands_have_a_bound", "though only 1 were sent"),
    (Liar(refuses_renewals), V2, "commands_have_a_bound", "though only 256 were sent"),
    (Liar(everything_is_a_repeat), V2, "commands_have_a_bound", "deduplicated is True"),
    (Liar(prefers=(V1, V2)), V2, "newer_version_is_preferred", "'pulse.worker.v1'"),
    (Liar(prefers=(V2,)), V2, "older_version_stays", "(400, None)"),
    (Liar(resumes_nothing), V2, "attempt_moves_between_versions", "the lease's active is False"),
    (Liar(number_of_v1), V2, "welcome", "not in the schema"),
    (Liar(answers_as_in_v1), V2, "start_authorises", "not in the schema"),
    (Liar(another_order), V2, "starts_are_judged_alone", "the results is"),
    (Liar(another_order), V2, "resumes_are_judged_alone", "the results is"),
    (Liar(one_result_short), V2, "whole_life_in_batches", "the number of results"),
    (Liar(one_bad_item_spoils_all), V2, "renewals_are_judged_alone", "the results is"),
    (Liar(nobody_is_refused), V2, "finishes_are_judged_alone", "the results is"),
    (Liar(nothing_is_a_repeat), V2, "item_twice_in_one_frame", "deduplicated is"),
    (Liar(receipts_are_written_anew), V2, "item_is_the_operation", "the receipt is"),
    (Liar(takes_any_batch), V2, "batch_has_bounds", "without items is 'ack', not 'error'"),
    (Liar(takes_any_batch), V2, "malformed_item_spoils_its_frame", "is 'ack', not 'error'"),
    (Liar(assigns_twice), V2, "assignments_come_once_each", "the assigned tasks"),
    (Liar(pushes_nothing), V2, "cancel_is_pushed", "no frame came"),
    (Liar(pushes_another_attempt), V2, "cancel_is_pushed", "names no attempt"),
    (Liar(everything_is_the_caller), V2, "deadline_is_pushed", "names no attempt"),
    (
        Liar(answers=(b'"APPLIED"', b'"REFUSED"')),
        V2,
        "renewal_past_the_socket",
        "the disposition is 'REFUSED'",
    ),
    (
        Liar(answers=(b'"task_revision":"4"', b'"task_revision":"5"')),
        V1,
        "report_past_the_socket",
        "the receipt is",
    ),
    (
        Liar(answers=(b'"status":404', b'"status":200')),
        V2,
        "relayed_items_are_judged_alone",
        "the statuses of the items",
    ),
    (
        Liar(answers=(b"attempt_not_found", b"instance_conflict")),
        V1,
        "another_instance_relays_nothing",
        "'instance_conflict'",
    ),
    (Liar(hears=stopped_is_failed), V2, "confirmed_stop_by_outcome", "the states is"),
    (Liar(nobody_is_refused), V2, "cancelled_without_an_intent", "the results is"),
]


async def test_a_lie_is_found_by_the_check_of_its_rule(
    shared_cluster: LocalCluster, credential: str
) -> None:
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"

    gate = asyncio.Semaphore(AT_ONCE)

    async def look(liar: Liar, version: Version, name: str, reason: str) -> str:
        checks = [check for check in all_checks() if check.name == name]
        other = [V1] if name in NEEDS_BOTH else []
        async with gate, lying_gateway(url, credential, liar) as address:
            target = Target(address, credential, "default")
            (finding,) = await run(target, checks, at_once=1, versions=[version, *other])
        right = found(finding, reason)
        told = f"{name}, by {liar.says.__name__}: {finding.verdict} {finding.reason}"
        return "" if right else told

    missed = [text for text in await asyncio.gather(*(look(*lie) for lie in LIES)) if text]
    assert not missed, "\n".join(missed)


NEEDS_BOTH = ("newer_version_is_preferred", "older_version_stays", "attempt_moves_between_versions")


def found(finding: Finding, reason: str) -> bool:
    return finding.verdict == "FAIL" and reason in finding.reason


async def test_a_version_that_is_not_offered_is_not_failed(
    shared_cluster: LocalCluster, credential: str
) -> None:
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    names = ("welcome", "whole_life_in_batches", "health")
    checks = [check for check in all_checks() if check.name in names]
    async with lying_gateway(url, credential, Liar(prefers=[V1])) as address:
        target = Target(address, credential, "default")
        findings = await run(target, checks, at_once=4)
        with pytest.raises(NotOffered, match=r"pulse\.worker\.v2"):
            await run(target, checks, at_once=4, versions=[V2])
    said = {(f.check.name, f.version): f.verdict for f in findings}
    assert said == {
        ("welcome", V1): "pass",
        ("welcome", V2): "not offered",
        ("whole_life_in_batches", V2): "not offered",
        ("health", None): "pass",
    }
    lines = list(table(findings))
    assert "pulse.worker.v2 is not offered: 2 checks were not tried in it" in lines
    assert not any("whole_life_in_batches" in line for line in lines)
    assert lines[-1].endswith("2 passed, 0 failed, 0 skipped")
    rows = {(row["name"], row["protocol"]): row for row in json.loads(as_json(findings))}
    assert rows["welcome", "pulse.worker.v2"]["verdict"] == "not offered"
    assert rows["health", None]["verdict"] == "pass"


async def test_exit_codes_say_what_was_found(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0: nothing failed, though a version is not offered; 1, 3 and 5 as --help says."""
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    only = ("--only", "welcome", "--only", "whole_life_in_batches", "--json")
    codes = []
    for liar, more, told in (
        (Liar(prefers=[V1]), (), credential),
        (Liar(unknown_field), ("--protocol", "v1"), credential),
        (Liar(prefers=[V1]), ("--protocol", "v2"), credential),
        (Liar(), (), credential[:-1] + ("A" if credential[-1] != "A" else "E")),
    ):
        monkeypatch.setenv("ORBIT_CREDENTIAL", told)
        async with lying_gateway(url, credential, liar) as address:
            codes.append(await asyncio.to_thread(exit_code, address, *only, *more))
    assert codes == [0, 1, 3, 5]


def exit_code(*arguments: str) -> int:
    done = CliRunner().invoke(conformance, list(arguments), standalone_mode=False)
    if isinstance(done.exception, ClickException):
        return done.exception.exit_code
    assert done.exception is None
    return int(done.return_value)


async def test_what_only_an_operator_can_do_must_have_been_done(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-172, OP-04, OP-15: a node that stays and a credential that still works are found."""
    monkeypatch.setattr(revocation, "SWEEP_S", SHORT_S)
    monkeypatch.setattr(leaving, "ASKED_MAX", 5)
    spare = await asyncio.to_thread(app_with_every_scope, shared_cluster)
    url, other = (f"http://127.0.0.1:{node.port}" for node in shared_cluster.gateways[:2])
    checks = [check for check in all_checks() if check.phase in ("leaving", "revocation")]

    async def look(command: str, version: Version) -> dict[str, str]:
        target = Target(
            url,
            credential,
            "default",
            spare_credential=spare,
            revoke=command,
            leaving_url=other,
            leave=command,
        )
        findings = await run(target, checks, at_once=2, versions=[version])
        assert all(finding.verdict == "FAIL" for finding in findings)
        return {finding.check.phase: finding.reason for finding in findings}

    old, new, broken = await asyncio.gather(look("true", V1), look("true", V2), look("exit 3", V1))
    assert old == {
        "leaving": "draining is False, not True",
        "revocation": f"no frame came within {SHORT_S:g} s",
    }
    assert new["leaving"] == f"no frame came within {SHORT_S:g} s"
    failed = "the operator's command failed; it ended with 3: "
    assert broken == {"leaving": failed, "revocation": failed}


async def test_a_server_that_keeps_a_deaf_worker_is_found(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-158: between suite and gateway stands somebody who reads on and keeps it all."""
    monkeypatch.setattr(slowness, "LOST_S", SHORT_S)
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    checks = [check for check in all_checks() if check.phase == "slowness"]
    async with lying_gateway(url, credential, Liar()) as address:
        target = Target(address, credential, "default", slow=True)
        (finding,) = await run(target, checks, at_once=1, versions=[V2])
    assert found(
        finding, f"16 tasks of a worker that reads nothing are still there after {SHORT_S:g} s"
    )


async def test_a_deaf_worker_that_is_lost_too_early_or_too_late_is_found(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-158: the write deadline itself. Here it is 5 s, and liars have others."""
    monkeypatch.setattr(slowness, "DEADLINE_S", 5.0)
    monkeypatch.setattr(slowness, "LATEST_S", 11.0)
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    checks = [check for check in all_checks() if check.phase == "slowness"]

    async def look(stands_s: float) -> Finding:
        async with lying_gateway(url, credential, Liar(stands_s=stands_s)) as address:
            target = Target(address, credential, "default", slow=True)
            (finding,) = await run(target, checks, at_once=1, versions=[V1])
        return finding

    early, right, late = await asyncio.gather(look(1.0), look(5.5), look(12.5))
    assert (right.verdict, right.reason) == ("pass", "")
    assert found(early, "too early"), early.reason
    assert found(late, "too late"), late.reason


async def test_a_session_that_does_not_live_to_its_end_and_no_longer_is_found(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OP-15: by what the welcome tells, on gateways where a session lives a day and where 4 s."""
    monkeypatch.setattr(lifetimes, "SWEEP_S", SHORT_S)
    brief = await asyncio.to_thread(shared_cluster.add_gateway, {"ORBIT_SESSION_MAX_MS": "4000"})
    usual, short = (f"http://127.0.0.1:{n.port}" for n in (shared_cluster.gateways[0], brief))
    checks = [check for check in all_checks() if check.phase == "lifetimes"]

    async def look(url: str, liar: Liar) -> list[str]:
        async with lying_gateway(url, credential, liar) as address:
            target = Target(usual, credential, "default", brief_url=address)
            session, ending = await run(target, checks, at_once=1, versions=[V2])
        return [session.verdict, session.reason, ending.verdict, ending.reason]

    told = await asyncio.gather(
        look(short, Liar()),
        look(usual, Liar()),
        look(usual, Liar(lives(3))),
        look(short, Liar(lives(14))),
        look(short, Liar(no_close_reason)),
    )
    assert [verdict for verdict, *_ in told] == ["pass", "skipped", "FAIL", "FAIL", "FAIL"]
    for (_, reason, *_), part in zip(
        told[1:],
        (
            "a session lives for 86400 s; needs --brief-url",
            "no frame came within",
            "before its expires_at",
            "'internal', not 'session_expired'",
        ),
        strict=True,
    ):
        assert part in reason
    assert told[0][2:] == ["skipped", "needs --brief-credential, which ends within a minute"]


async def test_a_credential_that_does_not_end_is_found(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OP-15: its sessions are said to end, and do not."""
    monkeypatch.setattr(lifetimes, "SWEEP_S", SHORT_S)
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    lasting = await asyncio.to_thread(app_with_every_scope, shared_cluster)
    checks = [check for check in all_checks() if check.name == "credential_ends"]

    async def look(liar: Liar) -> Finding:
        async with lying_gateway(url, lasting, liar) as address:
            target = Target(address, credential, "default", brief_credential=lasting)
            (finding,) = await run(target, checks, at_once=1, versions=[V2])
        return finding

    honest, lying = await asyncio.gather(look(Liar()), look(Liar(lives(3))))
    assert honest.verdict == "skipped"
    assert "needs a --brief-credential that ends in a minute" in honest.reason
    assert found(lying, "no frame came within")


async def test_a_server_that_is_too_fast_to_be_flooded_is_not_failed(
    shared_cluster: LocalCluster, credential: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flooding, "BURST", flooding.ITEMS_MAX)
    url = f"http://127.0.0.1:{shared_cluster.gateways[0].port}"
    checks = [check for check in all_checks() if check.phase == "flooding"]
    findings = await run(Target(url, credential, "default"), checks, at_once=2)
    assert [finding.verdict for finding in findings] == ["skipped", "skipped"]
    assert "the server answers too fast" in findings[0].reason
