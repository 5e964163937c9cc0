"""Exit codes, and every failure as one line: what happened, where, what to do about it."""

import os
import sys
import traceback

import click

from orbit_sdk import errors
from orbit_sdk.address import DEFAULT_URL

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNAVAILABLE = 3
EXIT_NOT_FOUND = 4
EXIT_NOT_PERMITTED = 5
EXIT_CONFLICT = 6
EXIT_INTERRUPTED = 130

EXIT_CODES_HELP = """\b
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no answer in time, 4 not found,
5 not permitted, 6 conflict, 130 interrupted."""

_CODES: tuple[tuple[type[errors.OrbitError], int, str], ...] = (
    (errors.Unavailable, EXIT_UNAVAILABLE, "is the cluster up? `orbit dev` starts one"),
    (errors.RateLimited, EXIT_UNAVAILABLE, "try again later"),
    (errors.WaitTimeout, EXIT_UNAVAILABLE, "the task goes on; `orbit task watch` it"),
    (errors.NotFound, EXIT_NOT_FOUND, "check the name or id, and the credential's application"),
    (errors.Unauthorized, EXIT_NOT_PERMITTED, "set ORBIT_CREDENTIAL to a valid credential"),
    (errors.Forbidden, EXIT_NOT_PERMITTED, "use a credential with that permission"),
    (
        errors.Conflict,
        EXIT_CONFLICT,
        "its state is another, or the same key or name is taken",
    ),
    (errors.BadRequest, EXIT_USAGE, "see --help of the command"),
    (errors.ValidationFailed, EXIT_USAGE, "see --help of the command"),
)


def exit_code_of(error: BaseException) -> int:
    """Say in one line on stderr what went wrong, and return the code to exit with."""
    match error:
        case click.exceptions.Exit():
            return error.exit_code
        case click.ClickException():
            error.show()
            return error.exit_code
        case click.Abort() | KeyboardInterrupt():
            click.echo("orbit: interrupted", err=True)
            return EXIT_INTERRUPTED
        case errors.OrbitError():
            return _refused(error)
        case BrokenPipeError():
            # The reader has seen enough; nothing may be written on the way out either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
    if os.environ.get("ORBIT_DEBUG"):
        traceback.print_exception(error)
    hint = "ORBIT_DEBUG=1 shows where"
    click.echo(f"orbit: {type(error).__name__}: {_one_line(str(error))} ({hint})", err=True)
    return EXIT_FAILED


def _refused(error: errors.OrbitError) -> int:
    code, hint = next(
        ((code, hint) for kind, code, hint in _CODES if isinstance(error, kind)),
        (EXIT_FAILED, "the server's log knows more"),
    )
    where = os.environ.get("ORBIT_URL") or DEFAULT_URL
    key = error.details.get("idempotency_key")
    if key is not None:
        hint += f"; repeat it with --key {key}"
        expected = error.details.get("expected")
        hint += f" --expected {expected}" if expected is not None else ""
    click.echo(f"orbit: {_one_line(str(error))} [{where}]; {hint}", err=True)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())
