-- The tables of the cluster. A task's wide row is written when it is born and when it is settled;
-- between the two its life is in the narrow hot tables "ready" and "lease".
-- No foreign keys on the hot path: every write goes through one function that proves what it needs.

CREATE TABLE namespace (
    id          uuid PRIMARY KEY,
    name        text NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 128),
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE credential (
    key_id          text PRIMARY KEY CHECK (key_id ~ '^[0-9a-f]{16}$'),
    namespace_id    uuid NOT NULL REFERENCES namespace,
    label           text NOT NULL DEFAULT '' CHECK (length(label) <= 128),
    secret_hash     bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    scopes          text[] NOT NULL,
    queue_ids       uuid[],                 -- NULL: every queue of the namespace
    dispatcher_ids  uuid[] NOT NULL DEFAULT '{}',
    capacity_max    integer CHECK (capacity_max BETWEEN 0 AND 256),  -- of one instance; NULL: any
    created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at      timestamptz,
    revoked_at      timestamptz
);
CREATE INDEX credential_namespace ON credential (namespace_id);

CREATE TABLE gate (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    paused           boolean NOT NULL DEFAULT false,
    control_version  bigint NOT NULL DEFAULT 1 CHECK (control_version >= 1),
    reason           text NOT NULL DEFAULT '' CHECK (length(reason) <= 1024),
    updated_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE TABLE queue (
    id            uuid PRIMARY KEY,
    namespace_id  uuid NOT NULL REFERENCES namespace,
    name          text NOT NULL CHECK (length(name) BETWEEN 1 AND 128),
    gate_id       bigint NOT NULL REFERENCES gate,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (namespace_id, name)
);

CREATE TABLE route (
    id               bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id         uuid NOT NULL REFERENCES queue,
    handler          text NOT NULL,
    handler_version  text NOT NULL,
    payload_version  text NOT NULL,
    UNIQUE (queue_id, handler, handler_version, payload_version)
);

CREATE TABLE node (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('gateway', 'dispatcher')),
    draining    boolean NOT NULL DEFAULT false,
    started_at  timestamptz NOT NULL,
    beat_at     timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE worker_instance (
    id             uuid PRIMARY KEY,
    namespace_id   uuid NOT NULL REFERENCES namespace,
    secret_hash    bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    queue_id       uuid NOT NULL REFERENCES queue,
    routes         bigint[] NOT NULL,
    draining       boolean NOT NULL DEFAULT false,
    session_epoch  bigint NOT NULL DEFAULT 0,
    session_id     uuid,
    created_at     timestamptz NOT NULL,
    CHECK (session_epoch >= 0)
) WITH (fillfactor = 70);

CREATE TABLE session (
    id                 uuid PRIMARY KEY,
    instance_id        uuid NOT NULL,
    namespace_id       uuid NOT NULL,
    node_id            uuid NOT NULL,
    queue_id           uuid NOT NULL,
    credential_key_id  text NOT NULL,
    epoch              bigint NOT NULL CHECK (epoch >= 1),
    declared           integer NOT NULL CHECK (declared BETWEEN 0 AND 256),
    capacity           integer NOT NULL CHECK (capacity BETWEEN 0 AND declared),  -- what counts
    sequence           numeric(20, 0) NOT NULL DEFAULT 0,
    drain              boolean NOT NULL DEFAULT false,   -- as the latest capacity frame said
    opened_at          timestamptz NOT NULL,
    expires_at         timestamptz NOT NULL,
    closed_at          timestamptz,
    close_reason       text
) WITH (fillfactor = 70);
CREATE UNIQUE INDEX session_current ON session (instance_id) WHERE closed_at IS NULL;
CREATE INDEX session_node ON session (node_id) WHERE closed_at IS NULL;
CREATE INDEX session_queue ON session (queue_id) WHERE closed_at IS NULL;

CREATE TABLE task (
    id                   uuid NOT NULL,
    namespace_id         uuid NOT NULL,
    queue_id             uuid NOT NULL,
    route_id             bigint NOT NULL,
    priority             smallint NOT NULL CHECK (priority BETWEEN -100 AND 100),
    business_key         text CHECK (length(business_key) <= 191),
    payload              bytea NOT NULL,
    recovery_safety      text NOT NULL CHECK (recovery_safety IN ('IDEMPOTENT', 'RECONCILE_ONLY')),
    max_attempts         smallint NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),
    initial_delay_ms     bigint NOT NULL,
    max_delay_ms         bigint NOT NULL,
    attempt_timeout_ms   bigint NOT NULL,
    available_at         timestamptz NOT NULL,
    start_deadline_at    timestamptz,
    deadline_at          timestamptz NOT NULL,
    created_at           timestamptz NOT NULL,
    -- written when the task is settled
    state                text CHECK (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'NEEDS_REVIEW')),
    revision             bigint NOT NULL DEFAULT 1 CHECK (revision >= 1),
    attempt_count        smallint NOT NULL DEFAULT 0,
    error_code           text,
    attempt_id           uuid,            -- the attempt whose end settled the task; holds the result
    epoch                bigint NOT NULL DEFAULT 0,   -- grants so far: no later one is given twice
    cancel_requested_at  timestamptz,
    cancel_reason        text,
    completed_at         timestamptz,
    -- written when a person decides
    retried_at           timestamptz,
    resolved_at          timestamptz,     -- a review ended the task, not its attempt
    resolve_reason       text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE TABLE task_default PARTITION OF task DEFAULT WITH (fillfactor = 75);

CREATE TABLE submission (
    namespace_id  uuid NOT NULL,
    operation     text NOT NULL,
    key           text NOT NULL,
    scope         uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
                                          -- the resource that an operation is about; nil to submit
    hash          bytea NOT NULL CHECK (octet_length(hash) = 32),
    resource_id   uuid NOT NULL,
    created_at    timestamptz NOT NULL,
    code          text,                   -- what an operation answered, for its repeats
    state         text,
    revision      bigint,
    PRIMARY KEY (namespace_id, operation, key, scope)
);

CREATE TABLE ready (
    task_id             uuid NOT NULL,
    namespace_id        uuid NOT NULL,
    queue_id            uuid NOT NULL,
    route_id            bigint NOT NULL,
    gate_id             bigint NOT NULL,
    priority            smallint NOT NULL,
    available_at        timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL,   -- the nearest deadline still in force
    start_deadline_at   timestamptz,            -- NULL once an attempt was started
    deadline_at         timestamptz NOT NULL,
    epoch               bigint NOT NULL,        -- grants so far
    attempt_count       smallint NOT NULL,      -- started attempts so far
    lapses              smallint NOT NULL,      -- grants in a row that ended before their start
    revision            bigint NOT NULL,
    recovery_safety     text NOT NULL,
    max_attempts        smallint NOT NULL,
    initial_delay_ms    bigint NOT NULL,
    max_delay_ms        bigint NOT NULL,
    attempt_timeout_ms  bigint NOT NULL,
    PRIMARY KEY (task_id)
);
CREATE INDEX ready_order ON ready (route_id, priority DESC, available_at, task_id);
CREATE INDEX ready_expiry ON ready (expires_at);

CREATE TABLE lease (
    attempt_id           uuid NOT NULL,
    task_id              uuid NOT NULL,
    namespace_id         uuid NOT NULL,
    queue_id             uuid NOT NULL,
    route_id             bigint NOT NULL,
    gate_id              bigint NOT NULL,
    priority             smallint NOT NULL,
    session_id           uuid NOT NULL,
    instance_id          uuid NOT NULL,
    state                text NOT NULL CHECK (state IN ('LEASED', 'RUNNING')),
    epoch                bigint NOT NULL CHECK (epoch >= 1),
    attempt_count        smallint NOT NULL,      -- started attempts, this one included
    lapses               smallint NOT NULL,
    revision             bigint NOT NULL,
    lease_ms             integer NOT NULL CHECK (lease_ms BETWEEN 1000 AND 120000),
    granted_at           timestamptz NOT NULL,
    lease_until          timestamptz NOT NULL,
    started_at           timestamptz,
    attempt_deadline_at  timestamptz,
    start_deadline_at    timestamptz,
    deadline_at          timestamptz NOT NULL,
    recovery_safety      text NOT NULL,
    max_attempts         smallint NOT NULL,
    initial_delay_ms     bigint NOT NULL,
    max_delay_ms         bigint NOT NULL,
    attempt_timeout_ms   bigint NOT NULL,
    intent               text CHECK (intent IN ('caller', 'deadline')),
    intent_at            timestamptz,
    intent_reason        text,                   -- in the caller's words
    told_at              timestamptz,            -- the worker was first answered: inactive
    acknowledged_at      timestamptz,            -- and was heard from after that
    start_message_id     uuid,                   -- the start receipt
    start_revision       bigint,
    start_lease_until    timestamptz,
    PRIMARY KEY (attempt_id),
    CONSTRAINT lease_one_per_task UNIQUE (task_id),
    CHECK ((state = 'RUNNING') = (started_at IS NOT NULL)),
    CHECK ((intent IS NULL) = (intent_at IS NULL))
) WITH (fillfactor = 60);
CREATE INDEX lease_instance ON lease (instance_id);

CREATE TABLE attempt (
    id                    uuid NOT NULL,
    task_id               uuid NOT NULL,
    namespace_id          uuid NOT NULL,
    instance_id           uuid NOT NULL,
    session_id            uuid NOT NULL,
    epoch                 bigint NOT NULL,
    state                 text NOT NULL
        CHECK (state IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'EXPIRED', 'UNKNOWN')),
    granted_at            timestamptz NOT NULL,
    started_at            timestamptz,
    finished_at           timestamptz NOT NULL,
    lease_until           timestamptz NOT NULL,
    intent                text,
    intent_at             timestamptz,
    acknowledged_at       timestamptz,
    error_code            text,
    result                bytea,
    start_message_id      uuid,                  -- the start receipt
    start_revision        bigint,
    start_lease_until     timestamptz,
    finish_message_id     uuid,                  -- the finish receipt; NULL where nobody reported
    finish_hash           bytea,
    task_state            text NOT NULL,         -- what the end of this attempt made of the task
    task_revision         bigint NOT NULL,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE TABLE attempt_default PARTITION OF attempt DEFAULT;
CREATE INDEX attempt_task ON attempt (task_id);

CREATE TABLE receipt (
    attempt_id     uuid NOT NULL,
    operation      text NOT NULL CHECK (operation IN ('start', 'renew', 'finish')),
    message_id     uuid NOT NULL,
    hash           bytea,
    task_state     text NOT NULL,
    attempt_state  text NOT NULL,
    task_revision  bigint NOT NULL,
    lease_until    timestamptz NOT NULL,
    disposition    text NOT NULL CHECK (disposition IN ('APPLIED', 'EVIDENCE_ONLY')),
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (attempt_id, operation, message_id)
);
CREATE INDEX receipt_age ON receipt (created_at) WHERE operation = 'renew';

CREATE TABLE evidence (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    attempt_id   uuid NOT NULL,
    task_id      uuid NOT NULL,
    operation    text NOT NULL,
    message_id   uuid NOT NULL,
    outcome      text,
    error_code   text,
    result       bytea,
    received_at  timestamptz NOT NULL,
    further      bigint NOT NULL DEFAULT 0       -- reports after this one that were only counted
);
CREATE INDEX evidence_attempt ON evidence (attempt_id);

CREATE TABLE event (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id       uuid NOT NULL DEFAULT gen_random_uuid(),
    namespace_id   uuid NOT NULL,
    resource_type  text NOT NULL,
    resource_id    uuid NOT NULL,
    revision       bigint NOT NULL,
    type           text NOT NULL,
    attempt_id     uuid,
    position       bigint,                       -- given by the publisher, after commit
    occurred_at    timestamptz NOT NULL
);

CREATE TABLE audit (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    namespace_id  uuid,
    actor         text NOT NULL,
    action        text NOT NULL,
    resource      text NOT NULL,
    reason        text NOT NULL DEFAULT '',
    evidence      bytea,                  -- what a review was based on, JSON as accepted
    occurred_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Hot tables are small and churn: clean them early and without pauses. No statement of ours needs
-- true statistics (docs/decisions/0002), so they are taken seldom.
ALTER TABLE ready SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 200000);
ALTER TABLE lease SET (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_threshold = 200000);
ALTER TABLE submission SET (autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_insert_threshold = 200000);
ALTER TABLE event SET (autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_insert_threshold = 200000);
ALTER TABLE task_default SET (autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_threshold = 100000);
ALTER TABLE attempt_default SET (autovacuum_analyze_threshold = 200000,
    autovacuum_vacuum_insert_threshold = 200000);

-- What an assignment carries, as claim_tasks_v1 and load_assignments_v1 return it.
CREATE TYPE assignment_v1 AS (
    session_id uuid, node_id uuid, task_id uuid, attempt_id uuid, epoch bigint,
    revision bigint, attempt_count integer, lease_until timestamptz, server_time timestamptz,
    namespace_id uuid, queue_id uuid, handler text, handler_version text,
    payload_version text, payload bytea, available_at timestamptz,
    start_deadline_at timestamptz, deadline_at timestamptz, business_key text,
    recovery_safety text, max_attempts integer, initial_delay_ms bigint,
    max_delay_ms bigint, attempt_timeout_ms bigint, created_at timestamptz
);

-- One row per worker command: the unchanging receipt, and the lease as checked for this answer.
CREATE TYPE command_outcome_v1 AS (
    code text, task_state text, attempt_state text, task_revision bigint,
    receipt_lease_until timestamptz, disposition text, deduplicated boolean,
    active boolean, lease_state text, lease_until timestamptz, server_time timestamptz,
    settled boolean
);

-- One row per operation on a task: what became of it, and whom to tell.
CREATE TYPE task_outcome_v1 AS (
    code text, task_state text, task_revision bigint, deduplicated boolean,
    queue_id uuid, route_id bigint, attempt_id uuid, session_id uuid, node_id uuid,
    intent text
);
