"""The bounds of a worker, each with its reason."""

from orbit_sdk.backoff import Backoff
from orbit_sdk.protocol.limits import FRAME_BYTES_MAX

# Work stops this long before the lease ends by our own count: the larger of the two. It covers
# what a handler needs to notice, and a clock that runs a little slow. Of a lease of less than three
# seconds it is a third: the contract allows one of a second, which has to be good for work too.
MARGIN_MIN_S = 1.0
MARGIN_SHARE = 0.1
MARGIN_SHARE_MAX = 1 / 3

# A lease is renewed after a third of it, so two tries may fail before work has to stop; up to this
# share earlier, so that attempts that started together do not renew together.
RENEW_SHARE = 1 / 3
RENEW_SPREAD = 0.15

# Where answers are slow a renewal is sent sooner, so that it is answered within this share of the
# lease after the one before was sent; but not sooner than that, however slow they are.
RENEWED_SHARE = 0.6
RENEW_SHARE_MIN = 0.15

# An unanswered message is repeated after a tenth of the lease: several repeats fit between a
# renewal and the stop boundary. The bounds keep a short lease from flooding and a long one waking.
REPEAT_SHARE = 0.1
REPEAT_MIN_S = 0.5
REPEAT_MAX_S = 10.0

# Where answers are slow it is repeated once it has waited so many times as long as the slowest of
# them, but after this share of the lease at the latest.
PATIENCE = 1.5
PATIENCE_SHARE_MAX = 0.5

# A report that waits without a socket for so long goes over HTTP; most reconnects are faster.
RELAY_REPORT_AFTER_S = 1.0

# A socket that has answered one of its kind within this share of the lease serves: what it has not
# answered yet is not tried over HTTP.
SERVES_SHARE = 0.25

# How often it is looked whether a lease runs short, as a share of it and at most and least.
RELAY_LOOK_SHARE = 0.05
RELAY_LOOK_MIN_S = 0.1
RELAY_LOOK_MAX_S = 1.0

# One request over HTTP: so long, and never so long that no second one could save the lease.
RELAY_TIMEOUT_S = 5.0
RELAY_TIMEOUT_SHARE = 0.2

# A welcome that does not come in this time will not come.
WELCOME_TIMEOUT_S = 10.0

# A node that says it is draining is left after this, if it has not closed before: idle workers find
# work elsewhere, and held attempts are resumed there with most of their lease left.
LEAVE_DRAINING_S = 2.0

# A capacity update that was refused is made anew, with a higher sequence, after this.
DECLARE_AGAIN_S = 1.0

# Between repeats of one operation that met passing trouble.
OPERATION_BACKOFF = Backoff(first_s=0.1, cap_s=5.0)

# Between connects. The cap keeps every worker within seconds of a cluster that came back.
CONNECT_BACKOFF = Backoff(first_s=0.2, cap_s=5.0)

# A worker that holds attempts waits no longer than this share of their lease, 5 s of the default
# one: gateways that go one after the other must not cost what it runs.
HELD_WAIT_SHARE = 1 / 6


def connect_backoff(held: int, lease_s: float) -> Backoff:
    """Between connects of a worker that holds so many attempts under such a lease."""
    return CONNECT_BACKOFF.within(lease_s * HELD_WAIT_SHARE) if held else CONNECT_BACKOFF


# A session that lived this long was a success: the next connect starts with a short wait again.
# Shorter ones do not, so that connect, fail, connect never becomes a loop without pauses.
SESSION_PROVEN_S = 10.0

# What a credential function may take; a call that has not returned by then is a failed try. Each
# that hangs keeps a thread: with so many of them no other is begun before one has returned.
CREDENTIAL_TIMEOUT_S = 10.0
CREDENTIAL_CALLS_MAX = 16

# Opening a socket, writing one message to it, closing it.
OPEN_TIMEOUT_S = 10.0
WRITE_DEADLINE_S = 10.0
CLOSE_TIMEOUT_S = 2.0

# Messages read and not yet judged; the core judges at once, so more only hides a stall.
READ_AHEAD_FRAMES = 64

# What is waiting for the socket. Every held attempt has at most two messages under way, of which
# one may be a result; beyond this the connection is broken and is given up.
OUTBOX_FRAMES_MAX = 2_048

# What a drain waits for by default: handlers first, then confirmations of what they returned.
DRAIN_GRACE_S = 30.0
SETTLE_TIMEOUT_S = 10.0

# The text of an exception that travels as a result.
ERROR_TEXT_CHARS_MAX = 2_000

# What an item of a batched frame adds to its result: 365 bytes at most; and what all items of one
# frame may have, so that the frame around them stays below its limit.
ITEM_BYTES = 400
FRAME_BYTES = FRAME_BYTES_MAX - 1_024
