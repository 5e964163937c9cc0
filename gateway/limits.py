"""Every bound of a gateway, its reason, and what happens at it (INV-37).

Wire bounds live in `orbit_sdk.protocol.limits`; these are the ones of the process behind it.
"""

import math
from typing import Final

from orbit_sdk.protocol import limits as wire

# --- batch lanes -------------------------------------------------------------------------------

BATCH_COMMANDS_MAX: Final = 500
"""Commands in one call. More gains nothing (measured) and holds row locks for longer."""

LANE_WIDTH: Final = 2
"""Calls of one kind in flight while the store is quick: one works while the other commits."""

CALL_SHARE: Final = 0.4
WAIT_SHARE: Final = 0.05
WAIT_MIN_S: Final = 0.1
"""A start or renewal may take this share of a lease, and waits at most that share for its call: two
of both fit into the 0.9 leases that a worker uses (B-04). Further calls than LANE_WIDTH begin so
far apart, and never closer than a busy store takes for a full batch."""


def lane_width(wait_share: float) -> int:
    """Calls in flight for which none waits longer than that share for its turn."""
    return 1 + math.ceil(round(CALL_SHARE / wait_share, 6))


FINISH_WAIT_SHARE: Final = 0.14
"""The same for a report. It is judged by the whole lease, and behind one start or renewal."""

LEASE_CALLS: Final = 3
GATE_SHARE: Final = 0.01
"""Starts, finishes, resumes and levels that are in the store at once: more take turns at the same
processors. But none waits for long in front of calls that take long (`gateway/gate.py`)."""

RELIEF_COMMANDS: Final = 100
RELIEF_AFTER_S: Final = 0.01
"""A call in flight is joined by a second one when that many commands wait, or that long. Fewer
wait for the first to return: a call costs as much as 20 to 40 commands, so many small ones would
take the processor from everybody."""

SUBMIT_QUEUE_MAX: Final = 20_000
"""Submissions waiting for a call. At the bound the item is refused as `rate_limited`."""

OPERATION_QUEUE_MAX: Final = 5_000
"""Cancels, retries or reviews waiting for a call: people and their scripts. Then `rate_limited`."""

FRAME_QUEUE_MAX: Final = 50_000
"""Worker commands of one kind waiting for a call. At the bound: error `rate_limited`."""

CALL_TIMEOUT_S: Final = 10.0
"""One call to the store. After it the connection is closed and the batch is sent again."""

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Pause before a batch is sent again after a lost connection; doubles up to the maximum."""

SUBMIT_PATIENCE_S: Final = 4.0
"""How long a submission waits for an absent store. Then 503, within the 5 s of B-33."""

SUBMIT_WAIT_S: Final = 4.5
"""How long a request waits for its submissions, however the lane fares."""

FRAME_PATIENCE_S: Final = 30.0
"""How long a worker command waits for an absent store. A lease is not much longer."""

LOCKED_PAUSE_S: Final = 0.05
"""Pause before a command comes again whose row another transaction holds. Its neighbours in the
batch do not wait: in Postgres what is held is passed over, or waited for `store.pool.LOCK_WAIT_S`,
and then the batch is halved."""

# --- sessions ----------------------------------------------------------------------------------

SESSIONS_MAX: Final = 20_000
"""Open worker sockets. At the bound the handshake is answered 503."""

SESSION_COMMANDS_MAX: Final = 1024
"""Unanswered commands of one session: four a slot of the largest capacity. Then `rate_limited`."""

HELD_COMMANDS_MAX: Final = 4
"""Unanswered commands of one kind for one attempt that came past the sockets: as many a slot as a
session may have. An attempt is proven by its lease's secret, so no caller has more by other names;
its requests may be given up while their commands still wait. Then `rate_limited`, item by item."""

SEND_FRAMES_MAX: Final = 4096
SEND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Hard bound of a send queue, acks included: at it the session is closed as `slow_consumer`."""

ASSIGN_QUEUE_BYTES_MAX: Final = 2 * 1024 * 1024
ASSIGN_QUEUE_BYTES_LOW: Final = 1024 * 1024
"""What assignments may fill a send queue up to, and from which level on it is filled again: half of
a full queue and a frame, so that what the platform itself hands over never closes a socket. The
rest waits in the store, where the end of its session or its lease finds it."""

ASSIGN_FRAME_BYTES: Final = 256
ASSIGN_ITEM_BYTES: Final = 320
"""What an assignment frame adds to its tasks: 157 bytes, and 252 at most for each of them."""

LEASE_SLACK_MS: Final = 1_000
"""A slot whose lease should be over is counted as used for this much longer."""

# --- caches ------------------------------------------------------------------------------------

CREDENTIAL_TTL_S: Final = 1.0
"""How long a credential found in the store is believed: a read a second for each in use. A revoked
one is refused within it even if its notice is lost (OP-15); its sessions end by the next sweep."""

CREDENTIALS_MAX: Final = 4096
QUEUE_TTL_S: Final = 30.0
QUEUES_MAX: Final = 4096
ROUTES_MAX: Final = 65_536
"""The oldest entries leave first; a miss costs one read."""

# --- HTTP --------------------------------------------------------------------------------------

READS_MAX: Final = 2
"""Queries of the HTTP API in flight: half of the background connections, beats keep theirs."""

BODY_TIMEOUT_S: Final = 30.0
"""A whole request body, however slowly it comes."""

BODIES_BYTES_MAX: Final = 128 * 1024 * 1024
BODY_BYTES_FREE: Final = 64 * 1024
"""All bodies in flight together, without the first bytes of each: eight of the largest batches. At
the bound a request that sends more is answered 503."""

READ_TIMEOUT_S: Final = 4.0
"""One query of the HTTP API, waiting for a connection included. Then 503."""

RETRY_AFTER_S: Final = 1

# --- loops -------------------------------------------------------------------------------------

BEAT_INTERVAL_MAX_S: Final = 2.0
BEAT_TIMEOUT_S: Final = 1.5
READY_STALE_S: Final = 4.0
"""A node is ready only while a beat has reached Postgres within this time (INV-40: 5 s)."""

STUCK_S: Final = 3.0
"""A call that has waited this long for the store makes the node unready and submissions 503."""

SWEEP_INTERVAL_S: Final = 1.0
"""Session expiry, lapsed slots, full queues."""

UNSENT_INTERVAL_S: Final = 2.5
UNSENT_UNWELL_INTERVAL_S: Final = 1.0
UNSENT_TICK_S: Final = 0.5
"""Slow twin of the node stream, its pace while Redis is unwell, and how often it is looked whether
the next time has come (architecture, section 2). One statement for all sessions of the node."""

UNSENT_AGE_MS: Final = 1_000
"""A lease younger than this may still be on its way through the stream."""

VERSION_CHECK_INTERVAL_S: Final = 30.0
"""How often a node asks whether the database still fits this build."""

SESSION_CHECK_INTERVAL_S: Final = 4.0
"""How often a node compares its sessions with those that the store knows as open here: the slow
twin of the notice that one was superseded. One indexed read."""

STREAM_BLOCK_MS: Final = 2_000
STREAM_COUNT: Final = 500

# --- listening socket --------------------------------------------------------------------------

BACKLOG: Final = 2048
SOCKET_SEND_BYTES: Final = 256 * 1024
"""Kernel send buffer of one connection: what a frozen peer can pin."""

JOINED_BYTES_MAX: Final = 64 * 1024
"""Frames of one turn of the loop join up to here, then the transport's flow control sees them."""

TCP_USER_TIMEOUT_MS: Final = 20_000
"""The kernel drops a connection whose data stays unacknowledged for so long."""

HEAD_TIMEOUT_S: Final = 10.0
HEAD_BYTES_MAX: Final = 65_536
"""A whole request head, from its connection or its first byte on. At the bound: 431, or a close."""

LINGER_S: Final = 2.0
"""How long the rest of a refused body, or of a message that ends its socket, is read and thrown
away, so that the refusal arrives."""

TURN_BYTES: Final = 128 * 1024
TURN_SHARE_BYTES: Final = 16 * 1024
"""Bytes of all worker sockets between two turns of the loop, and of one at a time. Of commands that
are refused one by one it is some 5 ms, and a beat takes a dozen turns, on a machine that may have
five others to serve. With half of it, the bursts of full workers make smaller batches."""

CONTROL_FRAME_BYTES: Final = 256
"""What a ping or pong counts for besides its bytes, which may be six: a share of them takes some
15 ms, and is the last of its turn."""

FRAGMENTS_MAX: Final = 1_024
"""Fragments of one message, which may be empty and so escape the frame limit. Then 1009."""

# --- drain -------------------------------------------------------------------------------------

DRAIN_NOTICE_S: Final = 5.0
"""How long a leaving node stays open after it said so, for balancers to notice (B-50)."""

DRAIN_FLUSH_S: Final = 5.0
"""Committed answers have this long to leave before the sockets are closed."""

assert 2 * (CALL_SHARE + WAIT_SHARE) <= 0.9
assert 2 * CALL_SHARE + WAIT_SHARE + FINISH_WAIT_SHARE + GATE_SHARE <= 1.0
assert HELD_COMMANDS_MAX * wire.CAPACITY_MAX <= SESSION_COMMANDS_MAX
assert wire.SEND_QUEUE_FRAMES_MAX < SEND_FRAMES_MAX
assert ASSIGN_QUEUE_BYTES_LOW < ASSIGN_QUEUE_BYTES_MAX < wire.SEND_QUEUE_BYTES_MAX < SEND_BYTES_MAX
assert wire.JSON_BYTES_MAX <= ASSIGN_QUEUE_BYTES_MAX - ASSIGN_QUEUE_BYTES_LOW
assert SUBMIT_PATIENCE_S < SUBMIT_WAIT_S < 5.0
assert UNSENT_AGE_MS / 1000 + UNSENT_INTERVAL_S + UNSENT_TICK_S <= 4.0  # INV-14: 5 s of dispatch
assert BODY_BYTES_FREE + wire.BATCH_BODY_BYTES_MAX < BODIES_BYTES_MAX
assert TURN_SHARE_BYTES <= TURN_BYTES
assert SESSION_CHECK_INTERVAL_S * 1.1 <= 5.0  # a twin's bound; the rest of a loop varies by a tenth
assert BEAT_INTERVAL_MAX_S + BEAT_TIMEOUT_S < READY_STALE_S < 5.0
