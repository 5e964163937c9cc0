"""hello and welcome: instance, session, epochs, and who wins (R-020 to R-022, OP-10 to OP-13)."""

from orbit_sdk.conformance.bench import Bench, capability
from orbit_sdk.conformance.checks import check, expect, expect_equal
from orbit_sdk.conformance.peer import Instance, instant, new_id, new_secret


@check
async def welcome(bench: Bench) -> None:
    """R-022, R-117: a hello is answered by a welcome with session, epoch, times and lease length.

    A first hello; the session must end after the server's time.
    """
    peer = await bench.worker()
    body = peer.welcome
    expect(instant(body["expires_at"]) > instant(body["server_time"]), "it has ended", body)
    expect_equal(body["draining"], False, "draining", body)


@check
async def sessions_are_new(bench: Bench) -> None:
    """R-114: every connection gets a session id of its own.

    Two connections of one instance, one after the other.
    """
    first = await bench.worker()
    second = await bench.reconnected(first)
    expect(first.session_id != second.session_id, "the session id came twice", second.welcome)


@check
async def session_epoch_grows(bench: Bench) -> None:
    """OP-10: the session epoch grows with every hello of an instance.

    Three connections of one instance.
    """
    peer = await bench.worker()
    for _ in range(2):
        last, peer = peer, await bench.reconnected(peer)
        grew = int(peer.welcome["epoch"]) > int(last.welcome["epoch"])
        expect(grew, f"the epoch before was {last.welcome['epoch']}", peer.welcome)


@check
async def instance_is_bound_to_its_secret(bench: Bench) -> None:
    """OP-11, R-113: a known instance with another secret is instance_conflict.

    A hello with the id of a known instance and a new secret.
    """
    peer = await bench.worker()
    await bench.refused_hello(
        "instance_conflict", instance_id=peer.instance.id, instance_secret=new_secret()
    )


@check
async def instance_is_bound_to_its_capabilities(bench: Bench) -> None:
    """R-021, OP-13: a known instance with other capabilities is instance_conflict.

    A hello of a known instance that declares another handler.
    """
    peer = await bench.worker()
    await bench.refused_hello(
        "instance_conflict",
        instance_id=peer.instance.id,
        instance_secret=peer.instance.secret,
        capabilities=[capability(f"{bench.handler}.other")],
    )


@check
async def order_of_capabilities_means_nothing(bench: Bench) -> None:
    """R-021: the capabilities of a hello are a set.

    Two hellos of one instance with two capabilities in both orders.
    """
    both = [capability(bench.handler), capability(f"{bench.handler}.other")]
    peer = await bench.worker(capabilities=both)
    await peer.socket.close()
    await bench.worker(1, peer.instance, capabilities=both[::-1])


@check
async def initial_capacity_may_change(bench: Bench) -> None:
    """OP-13: a known instance may say hello with another capacity.

    Two hellos of one instance, with capacity 1 and 9.
    """
    peer = await bench.worker(1)
    await bench.reconnected(peer, 9)


@check
async def queue_must_exist(bench: Bench) -> None:
    """R-116, OP-07: a queue that is not the application's is queue_unavailable.

    A hello for a queue id that nobody has.
    """
    await bench.refused_hello("queue_unavailable", queue_id=new_id())


@check
async def second_hello_in_a_session(bench: Bench) -> None:
    """R-112, OP-08: a second hello on one connection is bad_frame, and the session goes on.

    hello again after the welcome, then a capacity update.
    """
    peer = await bench.worker()
    frame = await peer.refused("bad_frame", "worker.hello", bench.hello_body(peer.instance))
    expect_equal(frame.get("session_id"), peer.session_id, "the session", frame)
    await peer.declare(1, 1)


@check
async def newest_hello_wins(bench: Bench) -> None:
    """OP-13, R-114: the newest hello wins; the old connection is told and closed with 4409.

    Two open connections say hello as one instance.
    """
    old = await bench.worker()
    new = await bench.worker(1, old.instance)
    await old.fatal("session_superseded", 4409)
    await new.declare(1, 1)


@check
async def newest_hello_wins_across_nodes(bench: Bench) -> None:
    """OP-13, R-155: the newest hello wins, whatever node it reaches.

    The second hello of an instance goes to another node.
    """
    other = bench.need_other_url()
    old = await bench.worker()
    await bench.worker(1, old.instance, url=other)
    await old.fatal("session_superseded", 4409)


@check
async def another_session_is_named(bench: Bench) -> None:
    """R-114, OP-10: a frame of another session is session_superseded and changes nothing.

    A capacity update that names a session id nobody has; then one of the right session.
    """
    peer = await bench.worker()
    body = {"sequence": "9", "capacity": 0, "drain": True}
    await peer.refused("session_superseded", "worker.capacity", body, session_id=new_id())
    welcome = await peer.declare(1, 1)
    expect_equal(welcome["draining"], False, "draining", welcome)


@check
async def unsupported_version(bench: Bench) -> None:
    """R-011, R-055: a frame of another protocol version is refused, not read as this one.

    A hello whose protocol_version is not the one that was agreed on.
    """
    peer = await bench.connect()
    other = "2" if bench.version.number == "1" else "1"
    message = await peer.send(
        "worker.hello", bench.hello_body(peer.instance), protocol_version=other
    )
    frame = await peer.answer(message)
    code = frame.get("error", {}).get("code")
    expect(code in ("bad_frame", "unsupported_version"), f"the code is {code}", frame)
    await peer.closed(1008)


async def _refuse(bench: Bench, **changes: object) -> None:
    await bench.refused_hello("bad_frame", **changes)


@check
async def capacity_has_bounds(bench: Bench) -> None:
    """R-020: hello's capacity is 1 to 256.

    hellos with 0 and 257.
    """
    await _refuse(bench, capacity=0)
    await _refuse(bench, capacity=257)
    await bench.worker(256)


@check
async def capabilities_have_bounds(bench: Bench) -> None:
    """R-020: 1 to 32 capabilities, no two equal.

    hellos with none, with 33, with two equal ones, and with 32.
    """
    many = [capability(f"{bench.handler}.{number}") for number in range(33)]
    await _refuse(bench, capabilities=[])
    await _refuse(bench, capabilities=many)
    await _refuse(bench, capabilities=[many[0], many[0]])
    await bench.worker(1, capabilities=many[:32])


@check
async def capability_is_a_triple_of_tokens(bench: Bench) -> None:
    """R-006: handler, handler_version and payload_version are tokens of bounded length.

    Handlers that are empty, too long, with a space, with a dash first, ending with a line feed.
    """
    for handler in ("", "h" * 129, "a b", "-a", "a\n"):
        await _refuse(bench, capabilities=[capability(handler)])
    await bench.worker(1, capabilities=[capability("h" * 128)])


@check
async def identity_has_the_forms_of_the_contract(bench: Bench) -> None:
    """R-001, R-003: ids are 32 lowercase hexadecimal digits, secrets 43 strict base64url.

    hellos with an id in capitals, a short one, a secret with padding, one with loose last bits.
    """
    instance = Instance()
    await _refuse(bench, instance_id=new_id().upper().replace("0", "A"))
    await _refuse(bench, instance_id=instance.id[:-1])
    await _refuse(bench, instance_secret=instance.secret + "=")
    await _refuse(bench, instance_secret=instance.secret[:-1] + "B")
