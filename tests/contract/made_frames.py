"""Hypothesis strategies for frame texts: valid ones, valid ones with one thing changed, hostile.

A frame is built as a tree of JSON texts (`Members`, `Items` or the text itself), so that spelling,
order, repeats and broken literals are all within reach.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

Node = "Members | Items | str"


@dataclass(frozen=True)
class Members:
    """An object: keys are JSON string texts."""

    pairs: tuple[tuple[str, "Members | Items | str"], ...]


@dataclass(frozen=True)
class Items:
    """An array."""

    nodes: tuple["Members | Items | str", ...]


def written(node: "Members | Items | str", space: str = "") -> str:
    """The text of a tree, with this white space around every mark."""
    if isinstance(node, str):
        return node
    if isinstance(node, Items):
        inner = f"{space},{space}".join(written(item, space) for item in node.nodes)
        return f"[{space}{inner}{space}]"
    inner = f"{space},{space}".join(
        f"{key}{space}:{space}{written(value, space)}" for key, value in node.pairs
    )
    return f"{{{space}{inner}{space}}}"


def members(**nodes: st.SearchStrategy[object]) -> st.SearchStrategy[Members]:
    return st.fixed_dictionaries(nodes).map(tree_of)


def tree_of(fields: dict[str, object]) -> Members:
    return Members(
        tuple((json.dumps(name), node) for name, node in fields.items() if node is not None)  # type: ignore[misc]
    )


def quoted(texts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return texts.map(json.dumps)


def one_of_texts(*texts: str) -> st.SearchStrategy[str]:
    return quoted(st.sampled_from(texts))


def maybe(nodes: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | nodes


TOKEN_FIRST = "abcXYZ019"
ids = quoted(st.integers(0, 2**128 - 1).map("{:032x}".format))
uint64s = quoted(
    (st.integers(1, 2**64 - 1) | st.sampled_from([1, 9, 10, 2**63, 2**64 - 1])).map(str)
)
secrets = quoted(
    st.binary(min_size=32, max_size=32).map(
        lambda secret: base64.urlsafe_b64encode(secret).decode().rstrip("=")
    )
)
flags = st.sampled_from(["true", "false"])


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    return (st.sampled_from([low, high]) | st.integers(low, high)).map(str)


def tokens(chars_max: int) -> st.SearchStrategy[str]:
    rest = st.text("azAZ09_.:-", max_size=6) | st.just("x" * (chars_max - 1))
    return quoted(st.tuples(st.sampled_from(TOKEN_FIRST), rest).map("".join))


def _instant(microseconds: int) -> datetime:
    return datetime.min.replace(tzinfo=UTC) + timedelta(microseconds=microseconds)


def _time(instant: datetime, digits: int) -> str:
    fraction = f".{instant.microsecond:06d}"[: digits + 1] if digits else ""
    return f"{instant:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + fraction + "Z"


times = quoted(
    st.builds(
        _time,
        st.integers(0, 3_652_058 * 86_400_000_000).map(_instant),
        st.integers(0, 6),
    )
)

number_texts = st.from_regex(
    r"-?(?:0|[1-9][0-9]{0,20})(?:\.[0-9]{1,6})?(?:[eE][+-]?[0-9]{1,3})?", fullmatch=True
).filter(lambda text: len(text) <= 64 and text.isascii())
string_texts = st.one_of(
    quoted(st.text(max_size=8)),
    st.text('ab:\\"/\u00e9\U0001f600', max_size=6).map(
        lambda text: json.dumps(text, ensure_ascii=False)
    ),
    st.sampled_from([r'"\/"', r'"\u003a"', r'"\u0000"', r'"\ud83d\ude00"', '"[{"', '"NaN"']),
)
key_texts = st.sampled_from([r'"a"', r'"b"', r'"\u0063"', r'"d:"', '"\U0001f600"', '""', r'"\""'])


def _object(pairs: list[tuple[str, object]]) -> Members:
    by_name = {json.loads(key): (key, node) for key, node in pairs}
    return Members(tuple(by_name.values()))  # type: ignore[arg-type]


business = st.recursive(
    st.one_of(flags, number_texts, string_texts, st.just("{}"), st.just("[]")),
    lambda inner: st.one_of(
        st.lists(inner | st.just("null"), max_size=3).map(lambda nodes: Items(tuple(nodes))),
        st.lists(st.tuples(key_texts, inner | st.just("null")), max_size=3).map(_object),
    ),
    max_leaves=5,
)


def frame(
    kind: str, version: str = "1", **rest: st.SearchStrategy[object]
) -> st.SearchStrategy[Members]:
    return members(
        protocol_version=st.just(json.dumps(version)),
        type=st.just(json.dumps(kind)),
        message_id=ids,
        **rest,
    )


refs = members(task_id=ids, attempt_id=ids, epoch=uint64s, lease_secret=secrets)
names = {
    "handler": tokens(128),
    "handler_version": tokens(64),
    "payload_version": tokens(32),
}


def _distinct(nodes: list[Members]) -> Items:
    return Items(tuple({frozenset(node.pairs): node for node in nodes}.values()))


hellos = members(
    instance_id=ids,
    instance_secret=secrets,
    queue_id=ids,
    capabilities=st.lists(members(**names), min_size=1, max_size=3).map(_distinct),
    capacity=numbers(1, 256),
)
capacities = members(sequence=uint64s, capacity=numbers(0, 256), drain=flags)
hello_frames = frame("worker.hello", body=hellos)
capacity_frames = frame("worker.capacity", session_id=ids, body=capacities)
attempt_frames = st.sampled_from(["worker.resume", "task.start", "task.renew"]).flatmap(
    lambda kind: frame(kind, session_id=ids, body=refs)
)
finish_bodies = st.one_of(
    members(
        ref=refs,
        outcome=st.just('"SUCCEEDED"'),
        result=business,
        error_code=maybe(st.just('""')),
    ),
    members(
        ref=refs,
        outcome=one_of_texts("FAILED", "UNKNOWN"),
        result=business,
        error_code=tokens(64),
    ),
)
finish_frames = frame("task.finish", session_id=ids, body=finish_bodies)
client_frames = st.one_of(
    hello_frames, capacity_frames, attempt_frames, finish_frames, finish_frames
)

welcomes = members(
    session_id=ids,
    epoch=uint64s,
    server_time=times,
    expires_at=times,
    lease_duration_ms=numbers(1000, 120000),
    draining=flags,
)
attempt_states = one_of_texts(
    "LEASED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "EXPIRED", "UNKNOWN"
)
leases = st.one_of(
    members(
        active=st.just("true"),
        state=one_of_texts("LEASED", "RUNNING"),
        lease_until=times,
        server_time=times,
    ),
    members(active=st.just("false"), state=attempt_states, lease_until=times, server_time=times),
)
receipts = members(
    operation=one_of_texts("start", "renew", "finish"),
    task_state=one_of_texts("WAITING", "RUNNING", "CANCELLED", "NEEDS_REVIEW"),
    attempt_state=attempt_states,
    task_revision=uint64s,
    lease_until=times,
    disposition=one_of_texts("APPLIED", "EVIDENCE_ONLY"),
)
assigned_tasks = members(
    id=ids,
    namespace_id=ids,
    queue_id=ids,
    state=st.just('"LEASED"'),
    revision=uint64s,
    **names,
    payload=business,
    result=maybe(business),
    business_key=maybe(
        quoted(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
            | st.just("\U0001f600" * 191)
        )
    ),
    available_at=times,
    start_deadline_at=maybe(times),
    deadline_at=times,
    recovery_safety=one_of_texts("IDEMPOTENT", "RECONCILE_ONLY"),
    retry=members(
        max_attempts=numbers(1, 100),
        initial_delay_ms=numbers(0, 9223372036854),
        max_delay_ms=numbers(0, 9223372036854),
        attempt_timeout_ms=numbers(1, 2592000000),
    ),
    attempt_count=numbers(1, 100),
    cancel_requested_at=maybe(times),
    completed_at=maybe(times),
    created_at=times,
    updated_at=times,
)
welcome_frames = frame("worker.welcome", session_id=ids, reply_to=ids, body=welcomes)
command_results = members(receipt=receipts, lease=leases, deduplicated=flags)
ack_frames = frame(
    "ack", session_id=ids, reply_to=ids, body=st.one_of(welcomes, leases, command_results)
)
assignments = members(
    task=assigned_tasks,
    attempt_id=ids,
    epoch=uint64s,
    lease_secret=secrets,
    lease_until=times,
    server_time=times,
)
assign_frames = frame("task.assign", session_id=ids, body=assignments)
errors = members(
    code=tokens(64),
    message=quoted(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
        | st.just("\U0001f600" * 1024)
    ),
)
error_frames = frame("error", session_id=maybe(ids), reply_to=maybe(ids), error=errors)
server_frames = st.one_of(welcome_frames, ack_frames, ack_frames, assign_frames, error_frames)

spaces = st.sampled_from(["", "", " ", "\t", "\r\n"])

# One change of one place. Some leave the frame valid; the oracle says which.
ODD_VALUES = (
    "null", "true", "false", "0", "-0", "1", "1.0", "1e0", "-1", "0.5", "257", "121000",
    "9223372036855", "18446744073709551616", "1e400", "1e1100", "1e-1100", "NaN", "-Infinity",
    "01", "1" * 64, "1" * 65, "1." + "0" * 63, '""', '"1"', '"2"', '"0"', '"01"', '"+1"', '"-1"',
    '"1 "', '"18446744073709551615"', '"18446744073709551616"', '"99999999999999999999"',
    '"100000000000000000000"', r'"1\n"', '"\u0661"', '"' + "a" * 32 + '"', '"' + "A" * 32 + '"',
    '"' + "a" * 31 + '"', '"' + "a" * 33 + '"', '"' + "a" * 32 + r'\n"', '"' + "\uff41" * 32 + '"',
    '"' + "a" * 31 + "g" + '"', '"' + r"\u0061" * 32 + '"', '"' + "A" * 43 + '"',
    '"' + "A" * 42 + 'B"', '"' + "A" * 43 + r'\n"', '"' + "A" * 42 + '="', '"' + "A" * 41 + '+A"',
    '"x"', '"_x"', r'"x\n"', '"x y"', '"' + "x" * 129 + '"', '"' + "x" * 65 + '"',
    '"' + "x" * 64 + '"', '"\u00e9"', '"SUCCEEDED"', '"FAILED"', '"UNKNOWN"', '"CANCELLED"',
    '"LEASED"', '"RUNNING"', '"succeeded"', r'"FAILED\u0000"', r'"\u0000"', r'"\ud800"',
    '"task.start"', '"task.cancel"', '"worker.hello"', '"ack"', '"error"',
    '"2026-02-29T00:00:00Z"', '"2024-02-29T23:59:59.999999Z"', '"2026-13-01T00:00:00Z"',
    '"2026-01-01T24:00:00Z"', '"2026-01-01T00:00:60Z"', '"2026-06-30T23:59:60Z"',
    '"2026-01-01T00:00:00+00:00"', '"2026-01-01T00:00:00z"', '"2026-01-01 00:00:00Z"',
    '"2026-01-01T00:00:00.1234567Z"', '"2026-01-01T00:00:00.Z"', r'"2026-01-01T00:00:00Z\n"',
    '"0000-01-01T00:00:00Z"', '"9999-12-31T23:59:59.999999Z"', '"2026-00-10T00:00:00Z"',
    "{}", "[]", "[[]]", '{"a":1,"a":2}', r'{"a":1,"\u0061":2}', r'{"a":":","a":"\u003a"}',
    '{"a":{"a":1}}', "[" * 61 + "]" * 61, "[" * 62 + "]" * 62, "[" * 63 + "]" * 63,
    '"' + "\U0001f600" * 191 + '"', '"' + "\U0001f600" * 192 + '"', '"' + "m" * 1025 + '"',
    "", "x", '"', '"\t"', "'a'", "[1,]", '{"a":1,}',
)  # fmt: skip
odd_values = st.sampled_from(ODD_VALUES)
odd_keys = st.sampled_from(
    (
        '"extra"', '""', '"payload"', '"result"', '"session_id"', '"reply_to"', '"message_id"',
        '"error_code"', '"drain"', '"error"', r'"\ud800"', '"Type"', '"body "',
    )
)  # fmt: skip


def places(node: object, at: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Where a tree can be changed: the path of every member and item."""
    if isinstance(node, Members):
        children: tuple[object, ...] = tuple(value for _, value in node.pairs)
    elif isinstance(node, Items):
        children = node.nodes
    else:
        return []
    found = []
    for index, child in enumerate(children):
        found += [(*at, index), *places(child, (*at, index))]
    return found


def changed(node: object, path: tuple[int, ...], change: str, key: str, value: str) -> object:
    index, rest = path[0], path[1:]
    if isinstance(node, Items):
        nodes = list(node.nodes)
        if rest:
            nodes[index] = changed(nodes[index], rest, change, key, value)  # type: ignore[call-overload]
        elif change == "drop":
            del nodes[index]
        elif change in ("repeat", "repeat changed", "add"):
            nodes.append(nodes[index] if change == "repeat" else value)
        else:
            nodes[index] = value
        return Items(tuple(nodes))
    assert isinstance(node, Members)
    pairs = list(node.pairs)
    name, child = pairs[index]
    if rest:
        pairs[index] = (name, changed(child, rest, change, key, value))  # type: ignore[assignment]
    elif change == "drop":
        del pairs[index]
    elif change == "repeat":
        pairs.append((name, child))
    elif change == "repeat changed":
        pairs.insert(index, (name, value))
    elif change == "add":
        pairs.append((key, value))
    elif change == "rename":
        pairs[index] = (key, child)
    elif change == "escape":
        pairs[index] = (escaped(name), escaped(child) if isinstance(child, str) else child)
    elif change == "move last":
        pairs.append(pairs.pop(index))
    elif change == "case" and isinstance(child, str):
        pairs[index] = (name, child.swapcase())
    else:
        pairs[index] = (name, value)
    return Members(tuple(pairs))


def escaped(text: str) -> str:
    """The same string with its first character as an escape."""
    if len(text) > 2 and text[0] == '"' and text[1] != "\\" and ord(text[1]) < 0x10000:
        return f'"\\u{ord(text[1]):04x}{text[2:]}'
    return text


CHANGES = (
    "drop", "repeat", "repeat changed", "add", "rename", "escape", "move last", "case",
    "value", "value", "value", "value",
)  # fmt: skip


@st.composite
def nearly_valid(draw: st.DrawFn, frames: st.SearchStrategy[Members]) -> str:
    """The text of a frame after one change."""
    tree = draw(frames)
    path = draw(st.sampled_from(places(tree)))
    change = draw(st.sampled_from(CHANGES))
    result = changed(tree, path, change, draw(odd_keys), draw(odd_values))
    return written(result, draw(spaces))  # type: ignore[arg-type]


def texts(frames: st.SearchStrategy[Members]) -> st.SearchStrategy[str]:
    """The text of a valid frame, with some white space or none."""
    return st.builds(written, frames, spaces)


def _cut(text: str, at: int, piece: bytes) -> bytes:
    data = text.encode()
    at %= len(data)
    return data[:at] + piece + data[at + len(piece) // 2 :]


def hostile(frames: st.SearchStrategy[Members]) -> st.SearchStrategy[str | bytes]:
    """Texts that nobody meant: noise, noise inside a frame, nesting, odd encodings."""
    pieces = st.binary(max_size=4) | st.sampled_from(
        [b"\xed\xa0\x80", b"\xff", b"\x00", b"\\ud800", b'"', b"\\", b"\xc0\x80", b"\xef\xbb\xbf"]
    )
    return st.one_of(
        st.binary(max_size=64),
        st.text(st.characters(), max_size=40),
        st.text('{}[]":,\\0e-. tn\ud800', max_size=40),
        st.builds(_cut, texts(frames), st.integers(0, 5000), pieces),
        texts(frames).map(lambda text: text.encode("utf-16")),
        texts(frames).map(lambda text: "\ufeff" + text),
        texts(frames).map(lambda text: text + text),
        texts(frames).map(lambda text: text + "\n"),
        texts(frames).map(lambda text: text.replace('":"', '":"\ud800', 1)),
        st.builds(
            lambda opening, times: opening * times,
            st.sampled_from(["[", '{"a":', '{"body":', '{"type":"ack","body":']),
            st.sampled_from([1, 63, 64, 65, 1000, 3000]),
        ),
    )
