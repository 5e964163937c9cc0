"""The findings for people, as a table by phase, and for programs, as JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from orbit_sdk.conformance.checks import Check, shown
from orbit_sdk.conformance.run import Finding

NUMBERS_CHARS = 22


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """Lines: a block a phase, a line a check with the versions it was tried in.

    Versions that fared alike share a line; under a failure is what was tried and what was said.
    A version that is not offered is one line at the end.
    """
    tried = [finding for finding in findings if finding.verdict != "not offered"]
    for phase, group in groupby(tried, lambda finding: finding.check.phase):
        yield phase
        for alike in _alike(list(group)):
            yield from _lines(alike)
        yield ""
    yield from _not_offered(findings)
    yield summary(findings)


def _alike(findings: list[Finding]) -> Iterator[list[Finding]]:
    """Findings of one check that say the same; what failed speaks for itself."""

    def key(finding: Finding) -> tuple[str, str, str]:
        version = finding.version.name if finding.version else ""
        own = version if finding.verdict == "FAIL" else finding.reason
        return finding.check.name, finding.verdict, own

    for _, group in groupby(findings, key):
        yield list(group)


def _lines(alike: list[Finding]) -> Iterator[str]:
    finding = alike[0]
    check = finding.check
    numbers = ", ".join(check.numbers)
    versions = " ".join(each.version.name for each in alike if each.version) or "-"
    yield f"  {finding.verdict:<8}{versions:<6}{numbers:<{NUMBERS_CHARS}} {check.requirement}"
    if finding.verdict == "pass":
        return
    margin = " " * 10
    yield f"{margin}{check.name}: {finding.reason}"
    if finding.verdict == "skipped":
        return
    yield f"{margin}tried: {check.tried}"
    if finding.frame is not None:
        yield f"{margin}offending: {shown(finding.frame)}"
    for who, frame in finding.said:
        yield f"{margin}{who}: {shown(frame)}"


def _not_offered(findings: Sequence[Finding]) -> Iterator[str]:
    missing = Counter(finding.version for finding in findings if finding.verdict == "not offered")
    for version, count in missing.items():
        if version is not None:
            yield f"{version.subprotocol} is not offered: {count} checks were not tried in it"
            yield ""


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many passed, failed, were skipped, and how many numbers were touched."""
    count = Counter(finding.verdict for finding in findings)
    numbers = {number for finding in findings for number in finding.check.numbers}
    tried = len(findings) - count["not offered"]
    return (
        f"{tried} checks of {len(numbers)} requirements: {count['pass']} passed, "
        f"{count['FAIL']} failed, {count['skipped']} skipped"
    )


def listing(checks: Sequence[Check]) -> Iterator[str]:
    """Lines: a check each, as the table would show it."""
    for check in checks:
        versions = " ".join(version.name for version in check.versions) or "-"
        numbers = ", ".join(check.numbers)
        yield f"{versions:<6}{numbers:<{NUMBERS_CHARS}} {check.name}: {check.requirement}"


def as_json(findings: Sequence[Finding]) -> str:
    """An array with one object a check and version; `protocol` is null where none matters."""
    rows = []
    for finding in findings:
        check = finding.check
        row: dict[str, object] = {
            "name": check.name,
            "phase": check.phase,
            "protocol": finding.version.subprotocol if finding.version else None,
            "numbers": list(check.numbers),
            "requirement": check.requirement,
            "tried": check.tried,
            "verdict": finding.verdict.lower(),
            "reason": finding.reason,
            "seconds": round(finding.seconds, 3),
        }
        if finding.verdict == "FAIL":
            row["offending"] = finding.frame
            row["said"] = [{"by": who, "frame": frame} for who, frame in finding.said]
        rows.append(row)
    return json.dumps(rows, ensure_ascii=False)
