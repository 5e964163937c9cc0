-- Grant: turn ready rows into LEASED leases, only what can be proven here: the row is still ready
-- and due, the session is current and open, its instance is not draining and serves the route, the
-- gate is open, and the instance holds fewer leases than its capacity (INV-1, INV-12, INV-17).
-- A session that somebody holds for longer than a commit takes gets nothing; the others are served.
-- Returns only what was won, with what an assignment carries; payloads above p_inline_max stay away.
-- The commit need not wait for the disk: a grant authorises nothing until its start is durable, and
-- the start's own commit makes every earlier one durable too.
CREATE OR REPLACE FUNCTION claim_tasks_v1(
    p_task uuid[], p_session uuid[], p_attempt uuid[], p_lease_ms integer, p_inline_max integer,
    p_now timestamptz DEFAULT NULL
) RETURNS SETOF assignment_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_session uuid[];
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM lock_gates_v1(ARRAY(
        SELECT (SELECT q.gate_id FROM queue q WHERE q.id = s.queue_id) FROM session s
        WHERE s.id = ANY (p_session)));
    BEGIN
        PERFORM set_config('lock_timeout', '250ms', true);
        PERFORM 1 FROM session s WHERE s.id = ANY (p_session) ORDER BY s.id FOR NO KEY UPDATE;
        v_session := p_session;
    EXCEPTION WHEN lock_not_available THEN
        v_session := ARRAY(SELECT k.id FROM (
            SELECT s.id FROM session s WHERE s.id = ANY (p_session)
            ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) k);
    END;
    v_now := coalesce(p_now, clock_timestamp());
    RETURN QUERY
    WITH asked AS MATERIALIZED (
        SELECT * FROM session WHERE id = ANY (v_session)
    ), slot AS MATERIALIZED (
        SELECT s.id, s.node_id, s.instance_id, s.queue_id, i.routes,
               s.capacity - (SELECT count(*) FROM lease l WHERE l.instance_id = s.instance_id)
                   AS free
        FROM asked s
        CROSS JOIN LATERAL (SELECT k.routes FROM worker_instance k
                            WHERE k.id = s.instance_id AND NOT k.draining LIMIT 1) i
        CROSS JOIN LATERAL (SELECT k.gate_id FROM queue k WHERE k.id = s.queue_id LIMIT 1) q
        CROSS JOIN LATERAL (SELECT 1 FROM gate k
                            WHERE k.id = q.gate_id AND NOT k.paused LIMIT 1) g
        WHERE s.closed_at IS NULL AND s.expires_at > v_now
    ), pair AS MATERIALIZED (
        SELECT DISTINCT ON (p.task) p.*
        FROM unnest(p_task, p_session, p_attempt)
             WITH ORDINALITY AS p (task, session, attempt, ord)
        ORDER BY p.task, p.ord
    ), held AS MATERIALIZED (
        SELECT r.*, p.session, p.attempt, p.ord
        FROM pair p JOIN ready r ON r.task_id = p.task
        WHERE r.task_id = ANY (p_task)
        ORDER BY r.task_id
        FOR UPDATE OF r SKIP LOCKED
    ), ranked AS (
        SELECT h.*, s.node_id, s.instance_id, s.free,
               row_number() OVER (PARTITION BY h.session ORDER BY h.ord) AS place
        FROM held h JOIN slot s ON s.id = h.session
        WHERE s.queue_id = h.queue_id AND h.route_id = ANY (s.routes)
          AND h.available_at <= v_now AND h.expires_at > v_now
    ), won AS MATERIALIZED (
        SELECT * FROM ranked WHERE place <= free
    ), gone AS (
        DELETE FROM ready r WHERE r.task_id = ANY (ARRAY(SELECT w.task_id FROM won w))
    ), leased AS (
        INSERT INTO lease (attempt_id, task_id, namespace_id, queue_id, route_id, gate_id,
            priority, session_id, instance_id, state, epoch, attempt_count, lapses, revision,
            lease_ms, granted_at, lease_until, start_deadline_at, deadline_at, recovery_safety,
            max_attempts, initial_delay_ms, max_delay_ms, attempt_timeout_ms)
        SELECT w.attempt, w.task_id, w.namespace_id, w.queue_id, w.route_id, w.gate_id,
               w.priority, w.session, w.instance_id, 'LEASED', w.epoch + 1, w.attempt_count + 1,
               w.lapses, w.revision + 1, p_lease_ms, v_now,
               least(v_now + p_lease_ms * interval '1 ms', w.expires_at),
               w.start_deadline_at, w.deadline_at, w.recovery_safety, w.max_attempts,
               w.initial_delay_ms, w.max_delay_ms, w.attempt_timeout_ms
        FROM won w
    )
    SELECT w.session, w.node_id, w.task_id, w.attempt, w.epoch + 1, w.revision + 1,
           w.attempt_count + 1,
           least(v_now + p_lease_ms * interval '1 ms', w.expires_at), v_now, w.namespace_id,
           w.queue_id, rt.handler, rt.handler_version, rt.payload_version,
           CASE WHEN octet_length(t.payload) <= p_inline_max THEN t.payload END,
           w.available_at, w.start_deadline_at, w.deadline_at, t.business_key,
           w.recovery_safety, w.max_attempts::integer, w.initial_delay_ms, w.max_delay_ms,
           w.attempt_timeout_ms, t.created_at
    FROM won w
    CROSS JOIN LATERAL (SELECT k.handler, k.handler_version, k.payload_version
                        FROM route k WHERE k.id = w.route_id LIMIT 1) rt
    CROSS JOIN LATERAL (SELECT k.payload, k.business_key, k.created_at
                        FROM task k WHERE k.id = w.task_id LIMIT 1) t
    ORDER BY w.ord;
END $$;
