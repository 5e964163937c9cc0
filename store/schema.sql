-- The schema after all migrations, without functions. Written by `make schema`; not run.

CREATE TYPE public.assignment_v1 AS (
	session_id uuid,
	node_id uuid,
	task_id uuid,
	attempt_id uuid,
	epoch bigint,
	revision bigint,
	attempt_count integer,
	lease_until timestamp with time zone,
	server_time timestamp with time zone,
	namespace_id uuid,
	queue_id uuid,
	handler text,
	handler_version text,
	payload_version text,
	payload bytea,
	available_at timestamp with time zone,
	start_deadline_at timestamp with time zone,
	deadline_at timestamp with time zone,
	business_key text,
	recovery_safety text,
	max_attempts integer,
	initial_delay_ms bigint,
	max_delay_ms bigint,
	attempt_timeout_ms bigint,
	created_at timestamp with time zone
);

CREATE TYPE public.command_outcome_v1 AS (
	code text,
	task_state text,
	attempt_state text,
	task_revision bigint,
	receipt_lease_until timestamp with time zone,
	disposition text,
	deduplicated boolean,
	active boolean,
	lease_state text,
	lease_until timestamp with time zone,
	server_time timestamp with time zone,
	settled boolean
);

CREATE TYPE public.task_outcome_v1 AS (
	code text,
	task_state text,
	task_revision bigint,
	deduplicated boolean,
	queue_id uuid,
	route_id bigint,
	attempt_id uuid,
	session_id uuid,
	node_id uuid,
	intent text
);

CREATE TABLE public.attempt (
    id uuid NOT NULL,
    task_id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    instance_id uuid NOT NULL,
    session_id uuid NOT NULL,
    epoch bigint NOT NULL,
    state text NOT NULL,
    granted_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    intent text,
    intent_at timestamp with time zone,
    acknowledged_at timestamp with time zone,
    error_code text,
    result bytea,
    start_message_id uuid,
    start_revision bigint,
    start_lease_until timestamp with time zone,
    finish_message_id uuid,
    finish_hash bytea,
    task_state text NOT NULL,
    task_revision bigint NOT NULL,
    CONSTRAINT attempt_state_check CHECK ((state = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text, 'UNKNOWN'::text])))
)
PARTITION BY RANGE (id);

CREATE TABLE public.attempt_default (
    id uuid CONSTRAINT attempt_id_not_null NOT NULL,
    task_id uuid CONSTRAINT attempt_task_id_not_null NOT NULL,
    namespace_id uuid CONSTRAINT attempt_namespace_id_not_null NOT NULL,
    instance_id uuid CONSTRAINT attempt_instance_id_not_null NOT NULL,
    session_id uuid CONSTRAINT attempt_session_id_not_null NOT NULL,
    epoch bigint CONSTRAINT attempt_epoch_not_null NOT NULL,
    state text CONSTRAINT attempt_state_not_null NOT NULL,
    granted_at timestamp with time zone CONSTRAINT attempt_granted_at_not_null NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone CONSTRAINT attempt_finished_at_not_null NOT NULL,
    lease_until timestamp with time zone CONSTRAINT attempt_lease_until_not_null NOT NULL,
    intent text,
    intent_at timestamp with time zone,
    acknowledged_at timestamp with time zone,
    error_code text,
    result bytea,
    start_message_id uuid,
    start_revision bigint,
    start_lease_until timestamp with time zone,
    finish_message_id uuid,
    finish_hash bytea,
    task_state text CONSTRAINT attempt_task_state_not_null NOT NULL,
    task_revision bigint CONSTRAINT attempt_task_revision_not_null NOT NULL,
    CONSTRAINT attempt_state_check CHECK ((state = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text, 'EXPIRED'::text, 'UNKNOWN'::text])))
)
WITH (autovacuum_analyze_threshold='200000', autovacuum_vacuum_insert_threshold='200000');

CREATE TABLE public.audit (
    id bigint NOT NULL,
    namespace_id uuid,
    actor text NOT NULL,
    action text NOT NULL,
    resource text NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    evidence bytea,
    occurred_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

ALTER TABLE public.audit ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.credential (
    key_id text NOT NULL,
    namespace_id uuid NOT NULL,
    label text DEFAULT ''::text NOT NULL,
    secret_hash bytea NOT NULL,
    scopes text[] NOT NULL,
    queue_ids uuid[],
    dispatcher_ids uuid[] DEFAULT '{}'::uuid[] NOT NULL,
    capacity_max integer,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    CONSTRAINT credential_capacity_max_check CHECK (((capacity_max >= 0) AND (capacity_max <= 256))),
    CONSTRAINT credential_key_id_check CHECK ((key_id ~ '^[0-9a-f]{16}$'::text)),
    CONSTRAINT credential_label_check CHECK ((length(label) <= 128)),
    CONSTRAINT credential_secret_hash_check CHECK ((octet_length(secret_hash) = 32))
);

CREATE TABLE public.event (
    id bigint NOT NULL,
    event_id uuid DEFAULT gen_random_uuid() NOT NULL,
    namespace_id uuid NOT NULL,
    resource_type text NOT NULL,
    resource_id uuid NOT NULL,
    revision bigint NOT NULL,
    type text NOT NULL,
    attempt_id uuid,
    "position" bigint,
    occurred_at timestamp with time zone NOT NULL
)
WITH (autovacuum_analyze_threshold='200000', autovacuum_vacuum_insert_threshold='200000');

ALTER TABLE public.event ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.event_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.evidence (
    id bigint NOT NULL,
    attempt_id uuid NOT NULL,
    task_id uuid NOT NULL,
    operation text NOT NULL,
    message_id uuid NOT NULL,
    outcome text,
    error_code text,
    result bytea,
    received_at timestamp with time zone NOT NULL,
    further bigint DEFAULT 0 NOT NULL
);

ALTER TABLE public.evidence ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.evidence_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.gate (
    id bigint NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    control_version bigint DEFAULT 1 NOT NULL,
    reason text DEFAULT ''::text NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT gate_control_version_check CHECK ((control_version >= 1)),
    CONSTRAINT gate_reason_check CHECK ((length(reason) <= 1024))
);

ALTER TABLE public.gate ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.gate_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.lease (
    attempt_id uuid NOT NULL,
    task_id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    queue_id uuid NOT NULL,
    route_id bigint NOT NULL,
    gate_id bigint NOT NULL,
    priority smallint NOT NULL,
    session_id uuid NOT NULL,
    instance_id uuid NOT NULL,
    state text NOT NULL,
    epoch bigint NOT NULL,
    attempt_count smallint NOT NULL,
    lapses smallint NOT NULL,
    revision bigint NOT NULL,
    lease_ms integer NOT NULL,
    granted_at timestamp with time zone NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    attempt_deadline_at timestamp with time zone,
    start_deadline_at timestamp with time zone,
    deadline_at timestamp with time zone NOT NULL,
    recovery_safety text NOT NULL,
    max_attempts smallint NOT NULL,
    initial_delay_ms bigint NOT NULL,
    max_delay_ms bigint NOT NULL,
    attempt_timeout_ms bigint NOT NULL,
    intent text,
    intent_at timestamp with time zone,
    intent_reason text,
    told_at timestamp with time zone,
    acknowledged_at timestamp with time zone,
    start_message_id uuid,
    start_revision bigint,
    start_lease_until timestamp with time zone,
    CONSTRAINT lease_check CHECK (((state = 'RUNNING'::text) = (started_at IS NOT NULL))),
    CONSTRAINT lease_check1 CHECK (((intent IS NULL) = (intent_at IS NULL))),
    CONSTRAINT lease_epoch_check CHECK ((epoch >= 1)),
    CONSTRAINT lease_intent_check CHECK ((intent = ANY (ARRAY['caller'::text, 'deadline'::text]))),
    CONSTRAINT lease_lease_ms_check CHECK (((lease_ms >= 1000) AND (lease_ms <= 120000))),
    CONSTRAINT lease_state_check CHECK ((state = ANY (ARRAY['LEASED'::text, 'RUNNING'::text])))
)
WITH (fillfactor='60', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='200000');

CREATE TABLE public.namespace (
    id uuid NOT NULL,
    name text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT namespace_name_check CHECK (((length(name) >= 1) AND (length(name) <= 128)))
);

CREATE TABLE public.node (
    id uuid NOT NULL,
    kind text NOT NULL,
    draining boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    CONSTRAINT node_kind_check CHECK ((kind = ANY (ARRAY['gateway'::text, 'dispatcher'::text])))
)
WITH (fillfactor='50');

CREATE TABLE public.queue (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    name text NOT NULL,
    gate_id bigint NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    CONSTRAINT queue_name_check CHECK (((length(name) >= 1) AND (length(name) <= 128)))
);

CREATE TABLE public.ready (
    task_id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    queue_id uuid NOT NULL,
    route_id bigint NOT NULL,
    gate_id bigint NOT NULL,
    priority smallint NOT NULL,
    available_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    start_deadline_at timestamp with time zone,
    deadline_at timestamp with time zone NOT NULL,
    epoch bigint NOT NULL,
    attempt_count smallint NOT NULL,
    lapses smallint NOT NULL,
    revision bigint NOT NULL,
    recovery_safety text NOT NULL,
    max_attempts smallint NOT NULL,
    initial_delay_ms bigint NOT NULL,
    max_delay_ms bigint NOT NULL,
    attempt_timeout_ms bigint NOT NULL
)
WITH (autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='5000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_threshold='200000');

CREATE TABLE public.receipt (
    attempt_id uuid NOT NULL,
    operation text NOT NULL,
    message_id uuid NOT NULL,
    hash bytea,
    task_state text NOT NULL,
    attempt_state text NOT NULL,
    task_revision bigint NOT NULL,
    lease_until timestamp with time zone NOT NULL,
    disposition text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT receipt_disposition_check CHECK ((disposition = ANY (ARRAY['APPLIED'::text, 'EVIDENCE_ONLY'::text]))),
    CONSTRAINT receipt_operation_check CHECK ((operation = ANY (ARRAY['start'::text, 'renew'::text, 'finish'::text])))
);

CREATE TABLE public.route (
    id bigint NOT NULL,
    queue_id uuid NOT NULL,
    handler text NOT NULL,
    handler_version text NOT NULL,
    payload_version text NOT NULL
);

ALTER TABLE public.route ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME public.route_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.schema_function (
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE public.schema_migration (
    version integer NOT NULL,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);

CREATE TABLE public.session (
    id uuid NOT NULL,
    instance_id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    node_id uuid NOT NULL,
    queue_id uuid NOT NULL,
    credential_key_id text NOT NULL,
    epoch bigint NOT NULL,
    declared integer NOT NULL,
    capacity integer NOT NULL,
    sequence numeric(20,0) DEFAULT 0 NOT NULL,
    drain boolean DEFAULT false NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    close_reason text,
    CONSTRAINT session_check CHECK (((capacity >= 0) AND (capacity <= declared))),
    CONSTRAINT session_declared_check CHECK (((declared >= 0) AND (declared <= 256))),
    CONSTRAINT session_epoch_check CHECK ((epoch >= 1))
)
WITH (fillfactor='70');

CREATE TABLE public.submission (
    namespace_id uuid NOT NULL,
    operation text NOT NULL,
    key text NOT NULL,
    scope uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    hash bytea NOT NULL,
    resource_id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    code text,
    state text,
    revision bigint,
    CONSTRAINT submission_hash_check CHECK ((octet_length(hash) = 32))
)
WITH (autovacuum_analyze_threshold='200000', autovacuum_vacuum_insert_threshold='200000');

CREATE TABLE public.task (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    queue_id uuid NOT NULL,
    route_id bigint NOT NULL,
    priority smallint NOT NULL,
    business_key text,
    payload bytea NOT NULL,
    recovery_safety text NOT NULL,
    max_attempts smallint NOT NULL,
    initial_delay_ms bigint NOT NULL,
    max_delay_ms bigint NOT NULL,
    attempt_timeout_ms bigint NOT NULL,
    available_at timestamp with time zone NOT NULL,
    start_deadline_at timestamp with time zone,
    deadline_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    state text,
    revision bigint DEFAULT 1 NOT NULL,
    attempt_count smallint DEFAULT 0 NOT NULL,
    error_code text,
    attempt_id uuid,
    epoch bigint DEFAULT 0 NOT NULL,
    cancel_requested_at timestamp with time zone,
    cancel_reason text,
    completed_at timestamp with time zone,
    retried_at timestamp with time zone,
    resolved_at timestamp with time zone,
    resolve_reason text,
    CONSTRAINT task_business_key_check CHECK ((length(business_key) <= 191)),
    CONSTRAINT task_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT task_priority_check CHECK (((priority >= '-100'::integer) AND (priority <= 100))),
    CONSTRAINT task_recovery_safety_check CHECK ((recovery_safety = ANY (ARRAY['IDEMPOTENT'::text, 'RECONCILE_ONLY'::text]))),
    CONSTRAINT task_revision_check CHECK ((revision >= 1)),
    CONSTRAINT task_state_check CHECK ((state = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text, 'NEEDS_REVIEW'::text])))
)
PARTITION BY RANGE (id);

CREATE TABLE public.task_default (
    id uuid CONSTRAINT task_id_not_null NOT NULL,
    namespace_id uuid CONSTRAINT task_namespace_id_not_null NOT NULL,
    queue_id uuid CONSTRAINT task_queue_id_not_null NOT NULL,
    route_id bigint CONSTRAINT task_route_id_not_null NOT NULL,
    priority smallint CONSTRAINT task_priority_not_null NOT NULL,
    business_key text,
    payload bytea CONSTRAINT task_payload_not_null NOT NULL,
    recovery_safety text CONSTRAINT task_recovery_safety_not_null NOT NULL,
    max_attempts smallint CONSTRAINT task_max_attempts_not_null NOT NULL,
    initial_delay_ms bigint CONSTRAINT task_initial_delay_ms_not_null NOT NULL,
    max_delay_ms bigint CONSTRAINT task_max_delay_ms_not_null NOT NULL,
    attempt_timeout_ms bigint CONSTRAINT task_attempt_timeout_ms_not_null NOT NULL,
    available_at timestamp with time zone CONSTRAINT task_available_at_not_null NOT NULL,
    start_deadline_at timestamp with time zone,
    deadline_at timestamp with time zone CONSTRAINT task_deadline_at_not_null NOT NULL,
    created_at timestamp with time zone CONSTRAINT task_created_at_not_null NOT NULL,
    state text,
    revision bigint DEFAULT 1 CONSTRAINT task_revision_not_null NOT NULL,
    attempt_count smallint DEFAULT 0 CONSTRAINT task_attempt_count_not_null NOT NULL,
    error_code text,
    attempt_id uuid,
    epoch bigint DEFAULT 0 CONSTRAINT task_epoch_not_null NOT NULL,
    cancel_requested_at timestamp with time zone,
    cancel_reason text,
    completed_at timestamp with time zone,
    retried_at timestamp with time zone,
    resolved_at timestamp with time zone,
    resolve_reason text,
    CONSTRAINT task_business_key_check CHECK ((length(business_key) <= 191)),
    CONSTRAINT task_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 100))),
    CONSTRAINT task_priority_check CHECK (((priority >= '-100'::integer) AND (priority <= 100))),
    CONSTRAINT task_recovery_safety_check CHECK ((recovery_safety = ANY (ARRAY['IDEMPOTENT'::text, 'RECONCILE_ONLY'::text]))),
    CONSTRAINT task_revision_check CHECK ((revision >= 1)),
    CONSTRAINT task_state_check CHECK ((state = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text, 'NEEDS_REVIEW'::text])))
)
WITH (fillfactor='75', autovacuum_analyze_threshold='200000', autovacuum_vacuum_threshold='100000');

CREATE TABLE public.worker_instance (
    id uuid NOT NULL,
    namespace_id uuid NOT NULL,
    secret_hash bytea NOT NULL,
    queue_id uuid NOT NULL,
    routes bigint[] NOT NULL,
    draining boolean DEFAULT false NOT NULL,
    session_epoch bigint DEFAULT 0 NOT NULL,
    session_id uuid,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT worker_instance_secret_hash_check CHECK ((octet_length(secret_hash) = 32)),
    CONSTRAINT worker_instance_session_epoch_check CHECK ((session_epoch >= 0))
)
WITH (fillfactor='70');

ALTER TABLE ONLY public.attempt ATTACH PARTITION public.attempt_default DEFAULT;

ALTER TABLE ONLY public.task ATTACH PARTITION public.task_default DEFAULT;

ALTER TABLE ONLY public.attempt
    ADD CONSTRAINT attempt_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.attempt_default
    ADD CONSTRAINT attempt_default_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.credential
    ADD CONSTRAINT credential_pkey PRIMARY KEY (key_id);

ALTER TABLE ONLY public.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.evidence
    ADD CONSTRAINT evidence_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.gate
    ADD CONSTRAINT gate_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.lease
    ADD CONSTRAINT lease_one_per_task UNIQUE (task_id);

ALTER TABLE ONLY public.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (attempt_id);

ALTER TABLE ONLY public.namespace
    ADD CONSTRAINT namespace_name_key UNIQUE (name);

ALTER TABLE ONLY public.namespace
    ADD CONSTRAINT namespace_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.queue
    ADD CONSTRAINT queue_namespace_id_name_key UNIQUE (namespace_id, name);

ALTER TABLE ONLY public.queue
    ADD CONSTRAINT queue_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.ready
    ADD CONSTRAINT ready_pkey PRIMARY KEY (task_id);

ALTER TABLE ONLY public.receipt
    ADD CONSTRAINT receipt_pkey PRIMARY KEY (attempt_id, operation, message_id);

ALTER TABLE ONLY public.route
    ADD CONSTRAINT route_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.route
    ADD CONSTRAINT route_queue_id_handler_handler_version_payload_version_key UNIQUE (queue_id, handler, handler_version, payload_version);

ALTER TABLE ONLY public.schema_function
    ADD CONSTRAINT schema_function_pkey PRIMARY KEY (name);

ALTER TABLE ONLY public.schema_migration
    ADD CONSTRAINT schema_migration_pkey PRIMARY KEY (version);

ALTER TABLE ONLY public.session
    ADD CONSTRAINT session_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.submission
    ADD CONSTRAINT submission_pkey PRIMARY KEY (namespace_id, operation, key, scope);

ALTER TABLE ONLY public.task
    ADD CONSTRAINT task_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.task_default
    ADD CONSTRAINT task_default_pkey PRIMARY KEY (id);

ALTER TABLE ONLY public.worker_instance
    ADD CONSTRAINT worker_instance_pkey PRIMARY KEY (id);

CREATE INDEX attempt_task ON ONLY public.attempt USING btree (task_id);

CREATE INDEX attempt_default_task_id_idx ON public.attempt_default USING btree (task_id);

CREATE INDEX credential_namespace ON public.credential USING btree (namespace_id);

CREATE INDEX evidence_attempt ON public.evidence USING btree (attempt_id);

CREATE INDEX lease_instance ON public.lease USING btree (instance_id);

CREATE INDEX ready_expiry ON public.ready USING btree (expires_at);

CREATE INDEX ready_order ON public.ready USING btree (route_id, priority DESC, available_at, task_id);

CREATE INDEX receipt_age ON public.receipt USING btree (created_at) WHERE (operation = 'renew'::text);

CREATE UNIQUE INDEX session_current ON public.session USING btree (instance_id) WHERE (closed_at IS NULL);

CREATE INDEX session_node ON public.session USING btree (node_id) WHERE (closed_at IS NULL);

CREATE INDEX session_queue ON public.session USING btree (queue_id) WHERE (closed_at IS NULL);

ALTER INDEX public.attempt_pkey ATTACH PARTITION public.attempt_default_pkey;

ALTER INDEX public.attempt_task ATTACH PARTITION public.attempt_default_task_id_idx;

ALTER INDEX public.task_pkey ATTACH PARTITION public.task_default_pkey;

ALTER TABLE ONLY public.credential
    ADD CONSTRAINT credential_namespace_id_fkey FOREIGN KEY (namespace_id) REFERENCES public.namespace(id);

ALTER TABLE ONLY public.queue
    ADD CONSTRAINT queue_gate_id_fkey FOREIGN KEY (gate_id) REFERENCES public.gate(id);

ALTER TABLE ONLY public.queue
    ADD CONSTRAINT queue_namespace_id_fkey FOREIGN KEY (namespace_id) REFERENCES public.namespace(id);

ALTER TABLE ONLY public.route
    ADD CONSTRAINT route_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES public.queue(id);

ALTER TABLE ONLY public.worker_instance
    ADD CONSTRAINT worker_instance_namespace_id_fkey FOREIGN KEY (namespace_id) REFERENCES public.namespace(id);

ALTER TABLE ONLY public.worker_instance
    ADD CONSTRAINT worker_instance_queue_id_fkey FOREIGN KEY (queue_id) REFERENCES public.queue(id);
