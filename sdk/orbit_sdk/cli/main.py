"""`orbit`: the one command line. Never ends in a traceback; exit codes are in `failures`."""

import sys

import click

from orbit_sdk.cli.failures import EXIT_CODES_HELP, EXIT_OK, exit_code_of
from orbit_sdk.cli.plugins import LazyGroup


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES_HELP,
)
def orbit() -> None:
    """Orbit hands tasks to workers, and knows at any time who may work on what.

    \b
    Where the cluster is and who you are:
      export ORBIT_URL=http://127.0.0.1:8080
      export ORBIT_CREDENTIAL=orbit_...
    \b
    A first round, with a worker in one terminal and a task in another:
      orbit worker handlers:worker
      orbit task submit hello --payload '{"name": "world"}' --wait
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    try:
        result = orbit.main(args=arguments, prog_name="orbit", standalone_mode=False)
        code = result if isinstance(result, int) else EXIT_OK
        sys.stdout.flush()
    except BaseException as error:
        if isinstance(error, SystemExit):
            raise
        code = exit_code_of(error)
    sys.exit(code)
