"""Every bound that both ends of a connection must agree on, each with its reason.

The numbers are requirements section 17 and the contract's own; a bound that only the server knows
lives with the server. Sizes are bytes of UTF-8, counts are items, `_MS` and `_S` are durations.
"""

from typing import Final

FRAME_BYTES_MAX: Final = 1_048_576
"""One WebSocket message: four times the largest business value, so that escapes never decide."""

JSON_BYTES_MAX: Final = 262_144
"""One business value (R-005), as written: what a row and a stream reader can still carry."""

JSON_DEPTH_MAX: Final = 64
"""Containers inside each other, counted over the whole text: far below any parser's stack."""

RESULT_DEPTH_MAX: Final = JSON_DEPTH_MAX - 2
"""A result's own nesting: it travels inside a finish frame and its body."""

PAYLOAD_DEPTH_MAX: Final = JSON_DEPTH_MAX - 3
"""A payload's own nesting: it travels inside an assignment frame, its body and its task. What a
submission may hold can therefore be delivered (INV-33)."""

FRAME_ITEMS_MAX: Final = 256
"""Operations or assignments of one v2 frame (OP-06): all that a session may hold, at once."""

BATCH_DEPTH_MAX: Final = JSON_DEPTH_MAX + 2
"""A v2 frame's nesting: an array and an item more than v1, so that both carry the same values."""

NUMBER_CHARS_MAX: Final = 64
"""A number as written: more digits than any decimal type, too few to make parsing slow."""

DECIMAL_CHARS_MAX: Final = 1_024
"""A number in plain decimal form (OP-42): keeps `1e400` exact, refuses `1e999999999`."""

HTTP_BODY_BYTES_MAX: Final = 1_048_576
"""One HTTP body, and one item of a batch: the same reach as a frame."""

BATCH_BODY_BYTES_MAX: Final = 16 * 1_048_576
"""A batch body: a thousand items of 16 KiB, and no more memory than that per request."""

BATCH_ITEMS_MAX: Final = 1_000
"""Items of one batch: one database statement of bounded length (OP-45)."""

HELD_ITEMS_MAX: Final = 256
"""Attempts that one request renews or reports: all that one worker may hold (CAPACITY_MAX)."""

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 200
"""Rows of one page: one screen by default, one bounded scan at most (OP-46)."""

KEY_CHARS_MAX: Final = 128
"""Idempotency-Key and submission_key: visible ASCII (OP-41); room for two UUIDs and a prefix."""

REASON_CHARS_MAX: Final = 1_024
"""Why an operation was wanted: a paragraph for a reader of the audit, not a report."""

REVISION_MAX: Final = 2**63 - 1
"""Revisions and control versions count up from 1 in a signed column (OP-16)."""

BUSINESS_KEY_CHARS_MAX: Final = 191
"""R-031; code points, not bytes."""

HANDLER_CHARS_MAX: Final = 128
HANDLER_VERSION_CHARS_MAX: Final = 64
PAYLOAD_VERSION_CHARS_MAX: Final = 32
ERROR_CODE_CHARS_MAX: Final = 64
ERROR_MESSAGE_CHARS_MAX: Final = 1_024
QUEUE_NAME_CHARS_MAX: Final = 128
"""Token lengths of R-006, R-017 and R-035; a queue name is a token like a handler."""

CAPACITY_MAX: Final = 256
"""Attempts one session holds (R-020): bounds what a lost connection can strand."""

CAPABILITIES_MAX: Final = 32
"""Capabilities of one hello (R-020): bounds the routes a dispatcher matches per session."""

PRIORITY_MIN: Final = -100
PRIORITY_MAX: Final = 100
"""OP-30; few enough levels for a skip scan over them."""

ATTEMPTS_MAX: Final = 100
DELAY_MS_MAX: Final = 9_223_372_036_854
ATTEMPT_TIMEOUT_MS_MAX: Final = 2_592_000_000
"""Retry bounds of R-033; the timeout is 30 days."""

YEAR_MIN: Final = 1970
YEAR_END: Final = 2200
"""Instants a submission may name lie in [YEAR_MIN, YEAR_END). The largest accepted delay is 292
years, so an instant plus a delay stays inside year 9999, which Python, Postgres and RFC 3339 hold
(INV-36)."""

DEADLINE_DEFAULT_S: Final = 86_400
"""A task without a deadline of its own ends a day after it became available (OP-40)."""

LEASE_MS_MIN: Final = 1_000
LEASE_MS_MAX: Final = 120_000
"""Lease duration a welcome may announce (R-022)."""

BAD_FRAMES_MAX: Final = 8
"""Malformed frames a session may send before it is closed (OP-08): room for a bug, not a flood."""

HELLO_TIMEOUT_S: Final = 5
PING_INTERVAL_S: Final = 20
WRITE_DEADLINE_S: Final = 10
"""Connection timers: a hello is one round trip. A pong is owed before the next ping is due, so a
dead link is found within two intervals, well before the 60 s that a silent one may last."""

SEND_QUEUE_FRAMES_MAX: Final = 64
SEND_QUEUE_BYTES_MAX: Final = 4 * 1_048_576
SEND_QUEUE_FULL_S: Final = 30
"""Frames waiting for one socket, then no further dispatch; full for this long closes (R-158)."""

assert JSON_BYTES_MAX * 2 < FRAME_BYTES_MAX
assert NUMBER_CHARS_MAX < DECIMAL_CHARS_MAX
assert JSON_BYTES_MAX < HTTP_BODY_BYTES_MAX < BATCH_BODY_BYTES_MAX
assert YEAR_END + DELAY_MS_MAX // (365 * 86_400_000) + 1 < 9999
assert FRAME_ITEMS_MAX >= CAPACITY_MAX
assert HELLO_TIMEOUT_S < PING_INTERVAL_S
assert 2 * PING_INTERVAL_S < 60
