"""The suite passes on real gateways, and notices a server that lies.

Between the suite and a real gateway stands a proxy that changes what the gateway says: each lie
must be found by the checks that stand for the broken rule.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from orbit_sdk.conformance.bench import SUBPROTOCOL, Target
from orbit_sdk.conformance.cases import all_checks
from orbit_sdk.conformance.run import Finding, run

if TYPE_CHECKING:
    from devcluster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

SCOPES = ("submit", "read", "work", "cancel", "retry", "review", "manage")

Frame = dict[str, Any]
Lie = Callable[[Frame], Frame | None]


async def test_real_gateways_keep_the_contract(cluster: "LocalCluster") -> None:
    """R-172: every check, none skipped."""
    credential = await asyncio.to_thread(app_with_every_scope, cluster)
    other = await asyncio.to_thread(cluster.create_app, "other", "default")
    first, second = (f"http://127.0.0.1:{node.port}" for node in cluster.gateways)
    target = Target(first, credential, "default", other_url=second, other_credential=other)
    findings = await run(target, all_checks(), at_once=8)
    wrong = [(f.check.name, f.reason, f.frame) for f in findings if f.verdict != "pass"]
    assert wrong == []


def app_with_every_scope(cluster: "LocalCluster") -> str:
    scopes = [word for scope in SCOPES for word in ("--scope", scope)]
    made = cluster.run("app", "create", "conformance", "--queue", "default", *scopes, "--json")
    return str(json.loads(made)["credential"])


@asynccontextmanager
async def lying_gateway(url: str, credential: str, lie: Lie) -> AsyncIterator[str]:
    """A server that hands everything on to a real one and lies about what that said."""

    async def hand_on(socket: ServerConnection) -> None:
        async with connect(
            url.replace("http", "ws") + "/v1/worker/connect",
            subprotocols=[Subprotocol(SUBPROTOCOL)],
            additional_headers={"Authorization": f"Bearer {credential}"},
            compression=None,
        ) as real:

            async def up() -> None:
                async for text in socket:
                    await real.send(text)
                await real.close()

            ups = asyncio.create_task(up())
            try:
                async for text in real:
                    told = lie(json.loads(text))
                    if told is not None:
                        await socket.send(json.dumps(told))
                await socket.close(real.close_code or 1000)
            except ConnectionClosed:
                pass
            finally:
                ups.cancel()
                await asyncio.wait([ups])

    async def over_http(_socket: ServerConnection, request: Request) -> Response | None:
        if "upgrade" in request.headers:
            return None
        async with httpx.AsyncClient() as http:
            found = await http.get(url + request.path, headers=dict(request.headers.raw_items()))
        return Response(found.status_code, "", Headers(found.headers), found.content)

    async with serve(
        hand_on,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        process_request=over_http,
        compression=None,
    ) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"


def unknown_field(frame: Frame) -> Frame:
    return {**frame, "more": 1}


def another_session(frame: Frame) -> Frame:
    known = frame["type"] == "ack"
    return {**frame, "session_id": "0" * 32} if known else frame


def silent(frame: Frame) -> Frame | None:
    return None if frame["type"] == "ack" else frame


def no_close_reason(frame: Frame) -> Frame:
    if frame["type"] != "error":
        return frame
    return {**frame, "error": {**frame["error"], "code": "internal"}}


def epochs_stand_still(frame: Frame) -> Frame:
    if frame["type"] != "worker.welcome":
        return frame
    return {**frame, "body": {**frame["body"], "epoch": "1"}}


def never_draining(frame: Frame) -> Frame:
    if "draining" not in frame.get("body", {}):
        return frame
    return {**frame, "body": {**frame["body"], "draining": False}}


LIES: list[tuple[Lie, str, str]] = [
    (unknown_field, "welcome", "not in the schema"),
    (another_session, "update_is_acknowledged", "R-014"),
    (silent, "update_is_acknowledged", "no frame came"),
    (no_close_reason, "second_hello_in_a_session", "'internal', not 'bad_frame'"),
    (epochs_stand_still, "session_epoch_grows", "the epoch before was 1"),
    (never_draining, "drain_is_one_way", "draining is False, not True"),
]


async def test_a_lie_is_found_by_the_check_of_its_rule(cluster: "LocalCluster") -> None:
    credential = await asyncio.to_thread(cluster.create_app, "conformance", "default")
    url = f"http://127.0.0.1:{cluster.gateways[0].port}"
    assert urlsplit(url).port
    for lie, name, reason in LIES:
        checks = [check for check in all_checks() if check.name == name]
        async with lying_gateway(url, credential, lie) as liar:
            (finding,) = await run(Target(liar, credential, "default"), checks, at_once=1)
        assert found(finding, reason), (lie.__name__, finding)


def found(finding: Finding, reason: str) -> bool:
    return finding.verdict == "FAIL" and reason in finding.reason and finding.said != ()
