"""The command group that loads a command only when it is used.

Commands of this distribution are named below; others join through entry points of the group
`orbit.commands` (name -> a click command). A plugin that cannot be imported breaks only itself.
"""

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

import click

PLUGIN_GROUP = "orbit.commands"

_OWN = {
    "worker": ("orbit_sdk.cli.worker", "Run the handlers of a module."),
    "task": ("orbit_sdk.cli.task", "Submit tasks, look at them, take them back."),
    "queue": ("orbit_sdk.cli.queue", "List, show, create and pause queues."),
    "conformance": ("orbit_sdk.cli.conformance", "Test a server against the contract."),
    "version": ("orbit_sdk.cli.version", "Print the installed versions."),
}
# Named even where they are not installed, so that the answer is how to get them.
_SERVER = {
    "gateway": "Run a gateway: HTTP API and worker connections.",
    "dispatcher": "Run a dispatcher: it brings tasks to workers.",
    "migrate": "Bring the database to this build's version.",
    "dev": "Run a whole cluster on this machine.",
    "app": "Create applications and credentials.",
}


class LazyGroup(click.Group):
    """Knows every command's name and line of help without importing it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_OWN, *sorted(_plugins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            command: click.Command = getattr(import_module(_OWN[cmd_name][0]), cmd_name)
            return command
        plugin = _plugins().get(cmd_name)
        if plugin is not None:
            return _loaded(plugin)
        if cmd_name in _SERVER:
            raise click.UsageError(
                f"`orbit {cmd_name}` belongs to the server, which is not installed here; "
                "install it with: pip install 'orbit-dispatcher[embedded]'"
            )
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, line) for name, (_, line) in _OWN.items()]
        rows += [(name, self._help_of(ctx, name)) for name in sorted(_plugins())]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _help_of(self, ctx: click.Context, name: str) -> str:
        if name in _SERVER:
            return _SERVER[name]
        try:
            command = self.get_command(ctx, name)
        except click.ClickException as error:
            return f"({error.message})"
        return command.get_short_help_str() if command is not None else ""


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=PLUGIN_GROUP)}


def _loaded(plugin: EntryPoint) -> click.Command:
    try:
        command = plugin.load()
    except ImportError as error:
        needs = plugin.dist.name if plugin.dist is not None else plugin.value
        raise click.ClickException(
            f"`orbit {plugin.name}` cannot be loaded ({error}); "
            f"install {needs} anew with what it needs, e.g. pip install '{needs}[embedded]'"
        ) from None
    if not isinstance(command, click.Command):
        raise click.ClickException(f"the plugin {plugin.value} is not a click command")
    return command
