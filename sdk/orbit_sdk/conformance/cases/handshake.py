"""The upgrade, what is refused before it, and the faults of the transport after it."""

import asyncio

from orbit_sdk.conformance.bench import Bench
from orbit_sdk.conformance.checks import CheckFailed, check, check_once, expect, expect_equal
from orbit_sdk.conformance.peer import ANSWER_S, new_id

FRAME_BYTES_MAX = 1_048_576
HELLO_S = 5.0


def bearer(bench: Bench) -> dict[str, str]:
    return {"Authorization": f"Bearer {bench.target.credential}"}


@check
async def upgrade(bench: Bench) -> None:
    """R-110: a worker connects by a WebSocket upgrade with a subprotocol of pulse.worker.

    An upgrade with credential and subprotocol; the answer must name the subprotocol.
    """
    await bench.connect()


@check_once
async def upgrade_without_subprotocol(bench: Bench) -> None:
    """R-110, OP-07: without the subprotocol the upgrade is answered 400 as plain HTTP.

    An upgrade that offers no subprotocol.
    """
    expect_equal(await bench.handshake_status(bearer(bench), []), 400, "the status")


@check_once
async def upgrade_with_another_subprotocol(bench: Bench) -> None:
    """R-170, OP-07: another subprotocol is not read as this one.

    An upgrade that offers pulse.worker.v999 alone.
    """
    status = await bench.handshake_status(bearer(bench), ["pulse.worker.v999"])
    expect_equal(status, 400, "the status")


@check
async def upgrade_chooses_among_subprotocols(bench: Bench) -> None:
    """R-110, R-170: the known subprotocol is chosen among those offered.

    An upgrade that offers an unknown one first.
    """
    status = await bench.handshake_status(
        bearer(bench), ["pulse.worker.v999", bench.version.subprotocol]
    )
    expect_equal(status, 101, "the status")


@check
async def upgrade_without_credential(bench: Bench) -> None:
    """R-111, R-104: without a credential the upgrade is answered 401.

    An upgrade without an Authorization header.
    """
    expect_equal(await bench.handshake_status({}, [bench.version.subprotocol]), 401, "the status")


@check
async def upgrade_with_credential_in_query(bench: Bench) -> None:
    """R-111: a credential in the URL's query is not accepted.

    An upgrade with the credential in several query parameters and in no header.
    """
    text = bench.target.credential
    query = f"?credential={text}&token={text}&access_token={text}&authorization={text}"
    status = await bench.handshake_status({}, [bench.version.subprotocol], query)
    expect_equal(status, 401, "the status")


@check
async def upgrade_with_wrong_secret(bench: Bench) -> None:
    """R-104, OP-51: a credential with another secret is answered 401.

    An upgrade whose credential differs in each of its last 16 characters.
    """
    kept, changed = bench.target.credential[:-16], bench.target.credential[-16:]
    other = "".join("B" if character == "A" else "A" for character in changed)
    headers = {"Authorization": f"Bearer {kept}{other}"}
    status = await bench.handshake_status(headers, [bench.version.subprotocol])
    expect_equal(status, 401, "the status")


@check
async def upgrade_of_another_path(bench: Bench) -> None:
    """R-110, R-105: no other path takes an upgrade.

    An upgrade of /v1/worker/elsewhere.
    """
    status = await bench.handshake_status(
        bearer(bench), [bench.version.subprotocol], path="/v1/worker/elsewhere"
    )
    expect_equal(status, 404, "the status")


@check
async def hello_comes_first(bench: Bench) -> None:
    """R-112, OP-08: the first frame must be a hello; anything else is refused and closes.

    A capacity frame as the first one.
    """
    peer = await bench.connect()
    body = {"sequence": "1", "capacity": 1, "drain": False}
    frame = await peer.refused("hello_required", "worker.capacity", body, session_id=new_id())
    expect("session_id" not in frame, "there is no session yet (R-016)", frame)
    await peer.closed(1008)


@check
async def fault_before_hello_closes(bench: Bench) -> None:
    """OP-08: before hello every malformed frame closes the connection.

    An empty JSON object as the first frame.
    """
    peer = await bench.connect()
    await peer.send_text("{}")
    frame = await peer.receive()
    expect_equal(frame.get("error", {}).get("code"), "bad_frame", "the error's code", frame)
    await peer.closed(1008)


@check
async def hello_must_come_in_time(bench: Bench) -> None:
    """OP-07: a connection without a hello ends with hello_timeout and 4408.

    A connection that says nothing for longer than five seconds.
    """
    peer = await bench.connect()
    await asyncio.sleep(HELLO_S)
    await peer.fatal("hello_timeout", 4408)


@check
async def binary_message(bench: Bench) -> None:
    """R-010, OP-07: frames are text; a binary message closes with 1003.

    A binary message inside a session.
    """
    peer = await bench.worker()
    await peer.socket.send(b"{}")
    await peer.closed(1003)


@check
async def text_that_is_not_utf8(bench: Bench) -> None:
    """R-010, OP-07: a text that is not UTF-8 closes with 1007.

    A text message with the byte 0xFF.
    """
    peer = await bench.worker()
    await peer.socket.send(b'{"\xff":1}', text=True)
    await peer.closed(1007)


@check
async def message_over_the_limit(bench: Bench) -> None:
    """R-053, OP-07: a message of more than 1 MiB closes with 1009.

    A text of 1 MiB and one byte.
    """
    peer = await bench.worker()
    await peer.socket.send(" " * (FRAME_BYTES_MAX + 1))
    await peer.closed(1009)


@check
async def message_in_fragments(bench: Bench) -> None:
    """R-010: one frame is one message, in however many fragments it travels.

    A hello in three fragments.
    """
    peer = await bench.connect()
    frame = peer.frame("worker.hello", bench.hello_body(peer.instance))
    await peer.send_fragments(frame, 3)
    answer = await peer.answer(frame["message_id"])
    expect_equal(answer["type"], "worker.welcome", "the answer to hello", answer)


@check
async def ping_is_answered(bench: Bench) -> None:
    """R-150: a ping is answered by a pong.

    A ping inside a session.
    """
    peer = await bench.worker()
    pong = await peer.socket.ping()
    try:
        async with asyncio.timeout(ANSWER_S):
            await pong
    except TimeoutError:
        raise CheckFailed("no pong came") from None
