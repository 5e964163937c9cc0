"""The bounds of a client, each with its reason."""

# An operation gives up after this, retries included: long enough to ride out a rolling restart.
OPERATION_DEADLINE_S = 30.0

# One exchange; a batch of 16 MiB over a slow link still fits, a dead peer is noticed.
EXCHANGE_TIMEOUT_S = 10.0

# First pause after a failure and the largest; a restart of a gateway takes about a second.
RETRY_FIRST_S = 0.1
RETRY_CAP_S = 5.0

# `wait` asks quickly at first, since most tasks are short, and then ever more rarely.
POLL_FIRST_S = 0.1
POLL_GROWTH = 1.5
POLL_CAP_S = 2.0

# Connections to one cluster; more would only queue in the gateway's submit lanes.
CONNECTIONS_MAX = 32
