-- Accept tasks: one submission row, one task row and one ready row each, or nothing (R-090..R-094).
-- Codes: created · repeat (same key, same meaning) · idempotency_conflict · deadline_order.
-- A deadline must leave room in the years that RFC 3339 can write (INV-36).
-- A race on one key is decided by the unique index; the loser reads the winner's row afterwards. That
-- is the only row that submissions share, so a wait for a lock is a wait for the whole store: no part
-- of the batch would fare better, and its node looks stuck, as it is.
CREATE OR REPLACE FUNCTION submit_tasks_v1(
    p_namespace uuid[], p_key text[], p_hash bytea[], p_task uuid[], p_queue uuid[],
    p_route bigint[], p_gate bigint[], p_payload bytea[], p_priority smallint[],
    p_business_key text[], p_available timestamptz[], p_start_deadline timestamptz[],
    p_deadline timestamptz[], p_safety text[], p_max_attempts smallint[],
    p_initial_delay_ms bigint[], p_max_delay_ms bigint[], p_attempt_timeout_ms bigint[],
    p_now timestamptz DEFAULT NULL
) RETURNS TABLE (code text, task_id uuid, state text, revision bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off SET lock_timeout = 0 AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_born bigint;
BEGIN
    WITH item AS MATERIALIZED (
        SELECT i.*, coalesce(i.available, v_now) AS available_at,
               coalesce(i.deadline, coalesce(i.available, v_now) + interval '24 hours')
                   AS deadline_at
        FROM unnest(p_namespace, p_key, p_hash, p_task, p_queue, p_route, p_gate, p_payload,
                    p_priority, p_business_key, p_available, p_start_deadline, p_deadline,
                    p_safety, p_max_attempts, p_initial_delay_ms, p_max_delay_ms,
                    p_attempt_timeout_ms)
             WITH ORDINALITY AS i (namespace_id, key, hash, task_id, queue_id, route_id, gate_id,
                    payload, priority, business_key, available, start_deadline_at, deadline,
                    safety, max_attempts, initial_ms, max_ms, timeout_ms, ord)
    ), won AS (
        INSERT INTO submission (namespace_id, operation, key, hash, resource_id, created_at)
        SELECT DISTINCT ON (i.namespace_id, i.key)
               i.namespace_id, 'task.submit', i.key, i.hash, i.task_id, v_now
        FROM item i
        WHERE i.available_at <= coalesce(i.start_deadline_at, i.available_at)
          AND coalesce(i.start_deadline_at, i.available_at) <= i.deadline_at
          AND coalesce(i.start_deadline_at, i.deadline_at) > v_now
          AND i.deadline_at > v_now AND i.deadline_at < timestamptz '9999-12-31 00:00:00Z'
        ORDER BY i.namespace_id, i.key, i.ord
        ON CONFLICT DO NOTHING
        RETURNING resource_id
    ), born AS (
        INSERT INTO task (id, namespace_id, queue_id, route_id, priority, business_key, payload,
            recovery_safety, max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms,
            available_at, start_deadline_at, deadline_at, created_at)
        SELECT i.task_id, i.namespace_id, i.queue_id, i.route_id, i.priority, i.business_key,
               i.payload, i.safety, i.max_attempts, i.initial_ms, i.max_ms, i.timeout_ms,
               i.available_at, i.start_deadline_at, i.deadline_at, v_now
        FROM item i JOIN won w ON w.resource_id = i.task_id
    ), placed AS (
        INSERT INTO ready (task_id, namespace_id, queue_id, route_id, gate_id, priority,
            available_at, expires_at, start_deadline_at, deadline_at, epoch, attempt_count,
            lapses, revision, recovery_safety, max_attempts, initial_delay_ms, max_delay_ms,
            attempt_timeout_ms)
        SELECT i.task_id, i.namespace_id, i.queue_id, i.route_id, i.gate_id, i.priority,
               i.available_at, least(i.start_deadline_at, i.deadline_at), i.start_deadline_at,
               i.deadline_at, 0, 0, 0, 1, i.safety, i.max_attempts, i.initial_ms, i.max_ms,
               i.timeout_ms
        FROM item i JOIN won w ON w.resource_id = i.task_id
    )
    SELECT count(*) INTO v_born FROM won;

    IF v_born = cardinality(p_task) THEN
        RETURN QUERY SELECT 'created'::text, i.id, 'WAITING'::text, 1::bigint
            FROM unnest(p_task) WITH ORDINALITY AS i (id, ord) ORDER BY i.ord;
        RETURN;
    END IF;
    RETURN QUERY
        SELECT CASE WHEN s.resource_id IS NULL THEN 'deadline_order'
                    WHEN s.resource_id = i.id THEN 'created'
                    -- its key was taken by a later item of this batch: it was not fit to take it
                    WHEN array_position(p_task, s.resource_id) > i.ord THEN 'deadline_order'
                    WHEN s.hash = i.hash THEN 'repeat'
                    ELSE 'idempotency_conflict' END,
               CASE WHEN array_position(p_task, s.resource_id) > i.ord THEN NULL
                    ELSE s.resource_id END, coalesce(v.state, 'WAITING'), coalesce(v.revision, 1)
        FROM unnest(p_namespace, p_key, p_hash, p_task)
             WITH ORDINALITY AS i (namespace_id, key, hash, id, ord)
        LEFT JOIN LATERAL (SELECT k.resource_id, k.hash FROM submission k
                           WHERE k.namespace_id = i.namespace_id AND k.operation = 'task.submit'
                             AND k.key = i.key LIMIT 1) s ON true
        LEFT JOIN LATERAL (SELECT n.state, n.revision FROM task_now_v1(s.resource_id) n
                           WHERE s.resource_id <> i.id LIMIT 1) v ON true
        ORDER BY i.ord;
END $$;
