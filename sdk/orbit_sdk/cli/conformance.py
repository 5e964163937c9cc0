"""`orbit conformance`: does the server at a URL keep the contract?"""

import asyncio
import sys
from collections.abc import Sequence

import click

from orbit_sdk.address import DEFAULT_URL, cluster_url, credential_text
from orbit_sdk.cli.failures import (
    EXIT_FAILED,
    EXIT_NOT_PERMITTED,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from orbit_sdk.conformance.bench import Target
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.checks import Check
from orbit_sdk.conformance.contract import ValidatorMissing
from orbit_sdk.conformance.report import as_json, table
from orbit_sdk.conformance.run import Finding, Refused, Unreachable, run


@click.command()
@click.argument("url", envvar="ORBIT_URL", default=DEFAULT_URL)
@click.option("--queue", default="default", show_default=True, help="Work here, by name or id.")
@click.option("--only", multiple=True, help="Numbers, names or phases, e.g. 'R-11*' or 'resuming'.")
@click.option("--other-url", help="Another node of the same cluster, for checks across nodes.")
@click.option(
    "--other-credential",
    envvar="ORBIT_OTHER_CREDENTIAL",
    help="A credential of another application, for checks of isolation.",
)
@click.option("--at-once", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--list", "only_list", is_flag=True, help="List the checks and run none.")
@click.option("--json", "as_json_", is_flag=True, help="Print JSON.")
def conformance(
    url: str,
    queue: str,
    only: tuple[str, ...],
    other_url: str | None,
    other_credential: str | None,
    at_once: int,
    only_list: bool,
    as_json_: bool,
) -> int:
    """Test the server at URL against the contract, as a stranger would.

    The credential comes from ORBIT_CREDENTIAL and needs the scopes submit, read and work on the
    queue; with cancel, retry, review and manage the operations are tried too, the pause on a queue
    named `conformance`. Tasks are submitted for handlers with random names; what is left of them
    fails by its deadline within ten minutes. Exit code 0: every check passed or was skipped; 1:
    some failed; 3: there is no server there.

    \b
      orbit conformance http://127.0.0.1:8080
      orbit conformance --only 'R-11*' --only OP-14 --json
    """
    chosen = [check for check in all_checks() if check.matches(only)]
    if not chosen:
        raise click.UsageError(f"no check matches {', '.join(only)}")
    if only_list:
        for check in chosen:
            click.echo(f"{', '.join(check.numbers):<22} {check.name}: {check.requirement}")
        return EXIT_OK
    target = Target(
        url=cluster_url(url),
        credential=credential_text(None),
        queue=queue,
        other_url=cluster_url(other_url) if other_url else None,
        other_credential=credential_text(other_credential) if other_credential else None,
    )
    findings = _run(target, chosen, at_once)
    if as_json_:
        click.echo(as_json(findings))
    else:
        for line in table(findings):
            click.echo(line)
    failed = any(finding.verdict == "FAIL" for finding in findings)
    return EXIT_FAILED if failed else EXIT_OK


def _run(target: Target, checks: Sequence[Check], at_once: int) -> list[Finding]:
    progress = _Progress(len(checks))
    try:
        return asyncio.run(run(target, checks, at_once=at_once, found=progress.found))
    except ValidatorMissing as error:
        raise _Ended(str(error), EXIT_USAGE) from None
    except Unreachable as error:
        raise _Ended(str(error), EXIT_UNAVAILABLE) from None
    except Refused as error:
        raise _Ended(str(error), EXIT_NOT_PERMITTED) from None
    finally:
        progress.end()


class _Ended(click.ClickException):
    """The run ended before it began."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.exit_code = code  # type: ignore[misc]


class _Progress:
    """One line on stderr that counts, if somebody looks at it."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._failed = 0
        self._shown = sys.stderr.isatty()

    def found(self, finding: Finding) -> None:
        self._done += 1
        self._failed += finding.verdict == "FAIL"
        if self._shown:
            text = f"\r{self._done} of {self._total} checks, {self._failed} failed"
            click.echo(text, nl=False, err=True)

    def end(self) -> None:
        if self._shown:
            click.echo("\r\033[K", nl=False, err=True)
