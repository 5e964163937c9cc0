"""Options that several commands share."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def operation_options(counter: str) -> Callable[[F], F]:
    """What every operation takes: why, on which revision or version, and under which key."""

    def add(command: F) -> F:
        command = click.option(
            "--key",
            help="Name of this operation: the same key again does it once; needs --expected.",
        )(command)
        command = click.option(
            "--expected",
            type=click.IntRange(min=1),
            help=f"The {counter} this was decided on.  [default: as it is now]",
        )(command)
        return click.option("--reason", required=True, help="Why, for the records.")(command)

    return add
