"""`orbit gateway`: run one gateway until SIGTERM or SIGINT, then leave in good order."""

import asyncio
from typing import Final

import click
import uvloop

from gateway.app import create_app
from gateway.node import Node
from gateway.server import GatewayServer, listen, serve
from gateway.worker.lease_secret import KeyRing
from runtime import failpoints
from runtime.collector import scan_seldom
from runtime.logs import configure_logging, get_logger
from runtime.settings import GatewaySettings, SettingsError, load_settings
from runtime.signals import stop_on_signals
from store.bus import Bus
from store.pool import Pools, open_pools

log: Final = get_logger(__name__)


@click.command()
@click.option("--host", help="Address to listen on; ORBIT_HOST by default.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port; ORBIT_PORT by default.")
def gateway(host: str | None, port: int | None) -> None:
    """Run a gateway: the HTTP API and the worker connections."""
    try:
        settings = load_settings(GatewaySettings)
    except SettingsError as error:
        raise click.ClickException(str(error)) from None
    configure_logging(settings.log_level, settings.log_format)
    failpoints.arm(settings.armed_failpoints())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, host or settings.host, port or settings.port))


def make_node(settings: GatewaySettings) -> Node:
    """A node of these settings, not yet running."""
    dsn = settings.database_url.get_secret_value()

    async def pools() -> Pools:
        return await open_pools(
            dsn,
            submit=settings.submit_pool,
            lease=settings.lease_pool,
            renew=settings.renew_pool,
            background=settings.background_pool,
        )

    return Node(
        open_pools=pools,
        bus=Bus(settings.redis_url.get_secret_value(), settings.cluster),
        ring=KeyRing(settings.key_ring()),
        lease_ms=settings.lease_duration_ms,
        session_max_ms=settings.session_max_ms,
        beat_interval_s=settings.node_beat_ms / 1000,
    )


async def run(settings: GatewaySettings, host: str, port: int) -> None:
    """Serve until a signal asks to stop."""
    try:
        sock = listen(host, port)
    except OSError as error:
        raise click.ClickException(f"cannot listen on {host}:{port}: {error.strerror}") from None
    node = make_node(settings)
    app = create_app(node, hello_timeout_s=settings.hello_timeout_ms / 1000)
    server = GatewayServer(
        app,
        node,
        ping_interval_s=settings.ping_interval_s,
        grace_s=settings.drain_grace_ms / 1000,
    )
    scan_seldom()
    log.info("gateway_listening", host=host, port=sock.getsockname()[1], node_id=node.node_id)
    with stop_on_signals() as stop:
        serving = asyncio.create_task(serve(server, node, sock))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        server.should_exit = True
        await serving
    log.info("gateway_stopped", node_id=node.node_id)
