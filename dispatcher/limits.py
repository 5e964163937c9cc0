"""Bounds of the dispatcher, each with its reason."""

ROUND_PAIRS_MAX = 500  # a batch of this size is where one claim call costs least per task
ROUND_ROWS_MAX = 1_000  # candidates read a round; above the pairs, since routes share slots
ROUND_WORKERS = 3  # rounds in flight; one connection of the pool stays free for the other loops
QUEUE_CLAIMS_MAX = 2  # of one queue in flight: one commits while the next is being read
ENTRY_PAYLOAD_BYTES_MAX = 262_144  # an entry a gateway reads at once; a hundred fit a read
ENTRY_ASSIGNMENTS_MAX = 200  # so that a gateway's loop is not held by one entry
HOLD_FIRST_S = 0.01  # rest of a queue after a round that won nothing, doubling
HOLD_MAX_S = 1.0  # the slow twin's period: no refusal should cost more than a lost hint
ROUTES_REMEMBERED_MAX = 100_000  # hints may name routes that do not exist
HINTS_READ_MAX = 500  # entries a read
HINTS_BLOCK_MS = 1_000  # how long a read waits; a stop does not wait for it
EXPIRE_BATCH_MAX = 500
UPKEEP_BATCH_MAX = 1_000
BEATS_MISSED_MAX = 3  # then a node is dead (architecture, section 7)

assert ROUND_ROWS_MAX >= ROUND_PAIRS_MAX
