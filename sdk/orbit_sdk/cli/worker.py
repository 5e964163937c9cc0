"""`orbit worker module:app`: finds a Worker in a user's module and runs it."""

import importlib
import logging
import os
import sys

import click

from orbit_sdk.protocol.limits import CAPACITY_MAX
from orbit_sdk.worker.worker import EXIT_WORK_LEFT, Worker


@click.command()
@click.argument("target", metavar="MODULE[:APP]")
@click.option("--queue", help="Take tasks of this queue, by name or id.")
@click.option(
    "--capacity", type=click.IntRange(1, CAPACITY_MAX), help="Run at most so many at once."
)
@click.option("--name", help="A name for the logs.")
@click.option("--grace", type=float, help="Seconds that a stop gives to running handlers.")
@click.option("--log-level", default="INFO", show_default=True, help="DEBUG, INFO, WARNING, ...")
def worker(
    target: str,
    queue: str | None,
    capacity: int | None,
    name: str | None,
    grace: float | None,
    log_level: str,
) -> int:
    """Run the handlers of a Worker, until SIGTERM or Ctrl-C.

    MODULE is imported from the current folder or the Python path; APP is the Worker in it and may
    be left out if there is just one. The first signal drains: no new tasks, running ones finish. A
    second one stops at once.

    \b
      orbit worker handlers:worker --capacity 16
      orbit worker shop.jobs
    """
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    found = find_worker(target)
    if queue is not None:
        found.queue = queue
    if capacity is not None:
        found.capacity = capacity
    if name is not None:
        found.name = name
    if grace is not None:
        found.grace_s = grace
    code = found.run()
    if code == EXIT_WORK_LEFT:
        # A blocking handler that does not stop would keep the interpreter from ending.
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)
    return code


def find_worker(target: str) -> Worker:
    """The Worker that MODULE[:APP] names. Raises click.UsageError saying which part is wrong."""
    module_name, _, app = target.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (
            module_name == error.name or module_name.startswith(f"{error.name}.")
        ):
            raise click.UsageError(
                f"there is no module {module_name!r} in {here} or on the Python path"
            ) from None
        raise click.UsageError(
            f"{module_name} needs {error.name}, which is not installed"
        ) from None
    except (ValueError, TypeError) as error:  # Of an empty or a relative name.
        raise click.UsageError(f"{target!r} is not MODULE:APP ({error})") from None
    if app:
        found = getattr(module, app, None)
        if not isinstance(found, Worker):
            raise click.UsageError(f"{app!r} in {module_name} is not a Worker")
        return found
    workers = {name: value for name, value in vars(module).items() if isinstance(value, Worker)}
    if len({id(value) for value in workers.values()}) != 1:
        names = ", ".join(workers) or "none"
        raise click.UsageError(
            f"{module_name} should hold one Worker and holds {names}; name one as MODULE:APP"
        )
    return next(iter(workers.values()))
