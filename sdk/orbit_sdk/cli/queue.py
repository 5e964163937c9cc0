"""`orbit queue`: list, show, create."""

import click

from orbit_sdk.cli.views import echo_json, echo_queues
from orbit_sdk.client.models import Queue
from orbit_sdk.client.sync_client import Client

_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def queue() -> None:
    """List, show and create queues of the credential's application."""


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


def _show(found: Queue, as_json: bool) -> None:
    if as_json:
        echo_json(found)
    else:
        echo_queues([found])
