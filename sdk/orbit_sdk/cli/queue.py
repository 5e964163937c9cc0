"""`orbit queue`: list, show, create, pause, resume."""

import click

from orbit_sdk.cli.options import operation_options
from orbit_sdk.cli.views import echo_json, echo_queues
from orbit_sdk.client.models import Queue, QueueChange
from orbit_sdk.client.sync_client import Client

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def queue() -> None:
    """List, show, create, pause and resume queues of the credential's application."""


@queue.command("list")
@_json_option
def list_all(as_json: bool) -> None:
    """List the queues that the credential reaches."""
    with Client() as client:
        queues = client.queues()
    if as_json:
        echo_json(queues)
    else:
        echo_queues(queues)


@queue.command()
@click.argument("name")
@_json_option
def show(name: str, as_json: bool) -> None:
    """Show the queue NAME (or its id)."""
    with Client() as client:
        _show(client.queue(name), as_json)


@queue.command()
@click.argument("name")
@_json_option
def create(name: str, as_json: bool) -> None:
    """Create the queue NAME."""
    with Client() as client:
        _show(client.create_queue(name), as_json)


@queue.command()
@click.argument("name")
@operation_options("control version")
@_json_option
def pause(name: str, reason: str, expected: int | None, key: str | None, as_json: bool) -> None:
    """Pause the queue NAME: nothing more is granted or started; what runs goes on.

    \b
      orbit queue pause mail --reason "incident 7"
    """
    with Client() as client:
        _changed(client.pause_queue(name, reason, expected_version=expected, key=key), as_json)


@queue.command()
@click.argument("name")
@operation_options("control version")
@_json_option
def resume(name: str, reason: str, expected: int | None, key: str | None, as_json: bool) -> None:
    """Resume the queue NAME."""
    with Client() as client:
        _changed(client.resume_queue(name, reason, expected_version=expected, key=key), as_json)


def _changed(change: QueueChange, as_json: bool) -> None:
    if as_json:
        echo_json(change)
        return
    state = "paused" if change.paused else "open"
    known = ", done before" if change.deduplicated else ""
    click.echo(f"{change.name} {state} (control version {change.control_version}{known})")


def _show(found: Queue, as_json: bool) -> None:
    if as_json:
        echo_json(found)
    else:
        echo_queues([found])
