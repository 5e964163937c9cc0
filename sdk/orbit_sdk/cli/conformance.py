"""`orbit conformance`: does the server at a URL keep the contract?"""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import click

from orbit_sdk.address import DEFAULT_URL, cluster_url, credential_text
from orbit_sdk.cli.failures import (
    EXIT_FAILED,
    EXIT_NOT_PERMITTED,
    EXIT_OK,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
)
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.checks import Check
from orbit_sdk.conformance.contract import VERSIONS, ValidatorMissing, Version
from orbit_sdk.conformance.report import as_json, listing, table
from orbit_sdk.conformance.run import Finding, NotOffered, Refused, Unreachable, run
from orbit_sdk.conformance.target import Target


def _address(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    return cluster_url(given) if given else None


def _credential(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    return credential_text(given) if given else None


@click.command()
@click.argument("url", envvar="ORBIT_URL", default=DEFAULT_URL)
@click.option("--queue", default="default", show_default=True, help="Work here, by name or id.")
@click.option(
    "--protocol",
    "protocols",
    multiple=True,
    type=click.Choice([version.name for version in VERSIONS]),
    help="Versions of the worker socket to try.  [default: each that is offered]",
)
@click.option("--only", multiple=True, help="Numbers, names or phases, e.g. 'R-11*' or 'resuming'.")
@click.option(
    "--slow", is_flag=True, help="Also stop reading, for half a minute; URL must be a node's own."
)
@click.option(
    "--other-url",
    callback=_address,
    help="Another node of the same cluster, for checks across nodes.",
)
@click.option(
    "--other-credential",
    envvar="ORBIT_OTHER_CREDENTIAL",
    callback=_credential,
    help="A credential of another application, for checks of isolation.",
)
@click.option(
    "--spare-credential",
    envvar="ORBIT_SPARE_CREDENTIAL",
    callback=_credential,
    help="A second credential of the application, to be revoked.",
)
@click.option("--revoke", metavar="COMMAND", help="A shell command that revokes the spare one.")
@click.option(
    "--brief-url",
    callback=_address,
    help="Another node of the same cluster, whose sessions live for a minute at most.",
)
@click.option(
    "--brief-credential",
    envvar="ORBIT_BRIEF_CREDENTIAL",
    callback=_credential,
    help="A further credential of the application, which ends within a minute.",
)
@click.option(
    "--leaving-url",
    callback=_address,
    help="Another node of the same cluster, which may be stopped.",
)
@click.option("--leave", metavar="COMMAND", help="A shell command that lets that node leave.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="So many checks run side by side.",
)
@click.option("--list", "only_list", is_flag=True, help="List the checks and run none.")
@click.option("--json", "as_json_", is_flag=True, help="Print JSON.")
def conformance(
    url: str,
    queue: str,
    protocols: tuple[str, ...],
    only: tuple[str, ...],
    at_once: int,
    only_list: bool,
    as_json_: bool,
    **given: Any,
) -> int:
    """Test the server at URL against the contract, as a stranger would.

    Every check names the rules it stands for and is tried in each version of the worker socket
    that has them: pulse.worker.v1, and pulse.worker.v2 where the server offers it. A failure shows
    what was tried and what the server said.

    The credential comes from ORBIT_CREDENTIAL and needs the scopes submit, read and work on the
    queue; with cancel, retry, review and manage the operations are tried too, the pause on a queue
    named `conformance`. Tasks are submitted for handlers with random names; what is left of them
    fails by its deadline within ten minutes.

    What only an operator can do is tried where a command is given for it, and skipped otherwise:
    --revoke with --spare-credential, and --leave with --leaving-url. So is what needs sessions that
    end soon: at URL itself, or else at --brief-url (for Orbit, a gateway started with
    ORBIT_SESSION_MAX_MS=10000), and with a --brief-credential.

    Exit code 0: every check passed, was skipped, or is of a version that is not offered; 1: some
    failed; 2: wrong usage, or the schema validator is missing; 3: there is no server there, or it
    offers no version of --protocol; 5: the credential or the queue is refused.

    \b
      orbit conformance http://127.0.0.1:8080
      orbit conformance --only 'R-11*' --only OP-14 --json
      orbit conformance --protocol v2 --only batching --only pushing
      orbit conformance --leaving-url http://node-2:8080 --leave 'ssh node-2 systemctl stop orbit'
    """
    chosen = [check for check in all_checks() if check.matches(only)]
    if not chosen:
        raise click.UsageError(f"no check matches {', '.join(only)}")
    if only_list:
        for line in listing(chosen):
            click.echo(line)
        return EXIT_OK
    if given["revoke"] and not given["spare_credential"]:
        raise click.UsageError("--revoke needs --spare-credential, the one it revokes")
    if given["leave"] and not given["leaving_url"]:
        raise click.UsageError("--leave needs --leaving-url, the node that it stops")
    # What an operator gives has the names that a target has for it.
    target = Target(cluster_url(url), credential_text(None), queue, **given)
    versions = [each for each in VERSIONS if not protocols or each.name in protocols]
    findings = _run(target, chosen, versions, at_once)
    for line in [as_json(findings)] if as_json_ else table(findings):
        click.echo(line)
    failed = any(finding.verdict == "FAIL" for finding in findings)
    return EXIT_FAILED if failed else EXIT_OK


def _run(
    target: Target, checks: Sequence[Check], versions: Sequence[Version], at_once: int
) -> list[Finding]:
    progress = _Progress(sum(len(check.versions) or 1 for check in checks))
    try:
        return asyncio.run(
            run(target, checks, at_once=at_once, versions=versions, found=progress.found)
        )
    except ValidatorMissing as error:
        raise _Ended(str(error), EXIT_USAGE) from None
    except (Unreachable, NotOffered) as error:
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
