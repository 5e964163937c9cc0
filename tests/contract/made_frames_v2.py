"""Hypothesis strategies for the frames of `pulse.worker.v2`, made of the parts of v1's."""

from functools import partial

from hypothesis import strategies as st

from tests.contract import made_frames as made
from tests.contract.made_frames import Items, Members, ids, maybe, members, uint64s

frame = partial(made.frame, version="2")


def some(nodes: st.SearchStrategy[Members]) -> st.SearchStrategy[Items]:
    return st.lists(nodes, min_size=1, max_size=3).map(lambda found: Items(tuple(found)))


attempt_items = members(
    message_id=ids,
    task_id=ids,
    attempt_id=ids,
    epoch=uint64s,
    lease_secret=made.secrets,
)
finish_items = st.one_of(
    members(
        message_id=ids,
        ref=made.refs,
        outcome=st.just('"SUCCEEDED"'),
        result=made.business,
        error_code=maybe(st.just('""')),
    ),
    members(
        message_id=ids,
        ref=made.refs,
        outcome=made.one_of_texts("FAILED", "UNKNOWN", "CANCELLED"),
        result=made.business,
        error_code=made.tokens(64),
    ),
)
attempt_frames = st.sampled_from(["worker.resume", "task.start", "task.renew"]).flatmap(
    lambda kind: frame(kind, session_id=ids, body=members(items=some(attempt_items)))
)
finish_frames = frame("task.finish", session_id=ids, body=members(items=some(finish_items)))
client_frames = st.one_of(
    frame("worker.hello", body=made.hellos),
    frame("worker.capacity", session_id=ids, body=made.capacities),
    attempt_frames,
    finish_frames,
    finish_frames,
)

results = st.one_of(made.command_results, made.leases, members(error=made.errors))
ack_frames = frame(
    "ack",
    session_id=ids,
    reply_to=ids,
    body=st.one_of(made.welcomes, members(results=some(results))),
)
assign_frames = frame(
    "task.assign", session_id=ids, body=members(assignments=some(made.assignments))
)
cancel_frames = frame(
    "task.cancel",
    session_id=ids,
    body=members(
        attempt_id=ids,
        task_id=ids,
        epoch=uint64s,
        reason=made.one_of_texts("caller", "deadline"),
    ),
)
server_frames = st.one_of(
    frame("worker.welcome", session_id=ids, reply_to=ids, body=made.welcomes),
    ack_frames,
    ack_frames,
    assign_frames,
    frame("error", session_id=maybe(ids), reply_to=maybe(ids), error=made.errors),
    cancel_frames,
    frame("worker.drain", session_id=ids, body=members(reason=made.tokens(64))),
)
