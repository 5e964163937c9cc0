"""`orbit dispatcher`: run one dispatcher until SIGTERM or SIGINT, then leave in good order."""

import asyncio
import sys

import click

from dispatcher.main import Dispatcher
from runtime import failpoints
from runtime.collector import scan_seldom
from runtime.logs import configure_logging
from runtime.settings import DispatcherSettings, SettingsError, load_settings
from runtime.signals import stop_on_signals


@click.command()
def dispatcher() -> None:
    """Run a dispatcher: give ready tasks to free workers, let leases lapse, reap dead nodes.

    Any number may run. Settings come from ORBIT_* variables; ORBIT_PROBE_PORT opens /health/live,
    /health/ready and /metrics.
    """
    try:
        settings = load_settings(DispatcherSettings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    configure_logging(settings.log_level, settings.log_format)
    failpoints.arm(settings.armed_failpoints())
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(_run(settings))


async def _run(settings: DispatcherSettings) -> None:
    scan_seldom()
    with stop_on_signals() as stop:
        try:
            await Dispatcher(settings).run(stop)
        except* OSError as errors:
            raise click.ClickException(
                f"cannot serve {settings.probe_host}:{settings.probe_port}: {errors.exceptions[0]}"
            ) from None


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()
