"""The findings for people, as a table by phase, and for programs, as JSON."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

from orbit_sdk.conformance.checks import shown
from orbit_sdk.conformance.run import Finding

NUMBERS_CHARS = 22


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """Lines: a block a phase, a line a check; under a failure what was tried and what was said."""
    for phase, group in groupby(findings, lambda finding: finding.check.phase):
        yield phase
        for finding in group:
            yield from _lines(finding)
        yield ""
    yield summary(findings)


def _lines(finding: Finding) -> Iterator[str]:
    check = finding.check
    numbers = ", ".join(check.numbers)
    yield f"  {finding.verdict:<8}{numbers:<{NUMBERS_CHARS}} {check.requirement}"
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


def summary(findings: Sequence[Finding]) -> str:
    """One line: how many passed, failed, were skipped, and how many numbers were touched."""
    count = Counter(finding.verdict for finding in findings)
    numbers = {number for finding in findings for number in finding.check.numbers}
    return (
        f"{len(findings)} checks of {len(numbers)} requirements: {count['pass']} passed, "
        f"{count['FAIL']} failed, {count['skipped']} skipped"
    )


def as_json(findings: Sequence[Finding]) -> str:
    """An array with one object a check."""
    rows = []
    for finding in findings:
        check = finding.check
        row: dict[str, object] = {
            "name": check.name,
            "phase": check.phase,
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
