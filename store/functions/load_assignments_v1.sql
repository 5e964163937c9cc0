-- Assignments of unstarted leases in full, large payloads included: what a gateway sends when the
-- stream carried only ids, or carried nothing (the slow twin of the fan-out).
CREATE OR REPLACE FUNCTION load_assignments_v1(p_attempt uuid[], p_now timestamptz DEFAULT NULL)
RETURNS SETOF assignment_v1
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
    SELECT l.session_id, s.node_id, l.task_id, l.attempt_id, l.epoch, l.revision,
           l.attempt_count::integer, l.lease_until, coalesce(p_now, clock_timestamp()),
           l.namespace_id, l.queue_id, rt.handler, rt.handler_version, rt.payload_version,
           t.payload, t.available_at, l.start_deadline_at, l.deadline_at, t.business_key,
           l.recovery_safety, l.max_attempts::integer, l.initial_delay_ms, l.max_delay_ms,
           l.attempt_timeout_ms, t.created_at
    FROM lease l
    JOIN session s ON s.id = l.session_id
    JOIN route rt ON rt.id = l.route_id
    CROSS JOIN LATERAL (SELECT k.payload, k.available_at, k.business_key, k.created_at
                        FROM task k WHERE k.id = l.task_id LIMIT 1) t
    WHERE l.attempt_id = ANY (p_attempt) AND l.state = 'LEASED'
$$;
