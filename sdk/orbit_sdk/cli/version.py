"""`orbit version`: what is installed."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of

import click

from orbit_sdk.cli.views import echo_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the versions of the SDK, of the server if it is installed, and of Python."""
    found = {name: _version(name) for name in ("orbit-sdk", "orbit-dispatcher")}
    found["python"] = platform.python_version()
    if as_json:
        echo_json(found)
        return
    for name, text in found.items():
        click.echo(f"{name:<17} {text or 'not installed'}")


def _version(distribution: str) -> str | None:
    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return None
