-- Settle leases that are over (or, unstarted, given back) by recovery class (OP-23..OP-27).
-- The caller holds their row locks. A running attempt that reached the task's deadline gets a
-- deadline intent and one reporting window first (OP-26, OP-03); the window starts at the deadline,
-- so it is the same whoever comes to open it, and one that is over too settles the lease at once.
-- Returns one row per lease that was settled, and whether its task waits again.
CREATE OR REPLACE FUNCTION lapse_leases_v1(p_attempt uuid[], p_now timestamptz)
RETURNS TABLE (attempt_id uuid, queue_id uuid, route_id bigint, waiting boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v record;
BEGIN
    WITH passed AS (
        UPDATE lease l
        SET intent = 'deadline', intent_at = p_now, revision = l.revision + 1,
            lease_until = l.deadline_at + l.lease_ms * interval '1 ms'
        WHERE l.attempt_id = ANY (p_attempt) AND l.state = 'RUNNING' AND l.intent IS NULL
          AND l.lease_until >= l.deadline_at AND l.deadline_at <= p_now
        RETURNING l.namespace_id, l.task_id, l.revision, l.attempt_id
    )
    INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, attempt_id,
                       occurred_at)
    SELECT k.namespace_id, 'task', k.task_id, k.revision, 'task.deadline_passed', k.attempt_id,
           p_now
    FROM passed k;

    SELECT array_agg(d.attempt_id) AS attempts, array_agg(d.attempt_state) AS attempt_states,
           array_agg(d.task_state) AS task_states, array_agg(d.task_code) AS task_codes,
           array_agg(d.available_at) AS available, array_agg(d.queue_id) AS queues,
           array_agg(d.route_id) AS routes, array_agg(NULL::text) AS codes,
           array_agg(NULL::bytea) AS nothing, array_agg(NULL::uuid) AS messages
    INTO v
    FROM (
        SELECT l.attempt_id, l.queue_id, l.route_id, w.available_at,
            CASE WHEN l.state = 'RUNNING' AND l.recovery_safety = 'RECONCILE_ONLY'
                 THEN 'UNKNOWN' ELSE 'EXPIRED' END AS attempt_state,
            CASE WHEN l.state = 'RUNNING' AND l.recovery_safety = 'RECONCILE_ONLY'
                      THEN 'NEEDS_REVIEW'
                 WHEN l.intent = 'caller' THEN 'CANCELLED'
                 WHEN c.task_code IS NOT NULL THEN 'FAILED' ELSE 'WAITING' END AS task_state,
            CASE WHEN l.intent = 'caller' AND c.task_code <> 'lease_lapsed' THEN NULL
                 ELSE c.task_code END AS task_code
        FROM lease l
        CROSS JOIN LATERAL (SELECT p_now + CASE
            WHEN l.state = 'RUNNING'
                THEN retry_delay_v1(l.initial_delay_ms, l.max_delay_ms, l.attempt_count)
            WHEN l.lapses >= 2
                THEN least(60, 2 ^ least(l.lapses - 2, 6)) * interval '1 second'
            ELSE interval '0' END AS available_at) w
        CROSS JOIN LATERAL (SELECT CASE
            WHEN l.intent = 'deadline' THEN 'deadline_exceeded'
            WHEN l.state = 'LEASED' AND l.start_deadline_at <= p_now
                THEN 'start_deadline_exceeded'
            WHEN l.state = 'LEASED' AND l.deadline_at <= p_now THEN 'deadline_exceeded'
            WHEN l.state = 'RUNNING' AND l.recovery_safety = 'RECONCILE_ONLY' THEN 'lease_lapsed'
            WHEN l.state = 'RUNNING' AND l.attempt_count >= l.max_attempts
                THEN 'attempts_exhausted'
            WHEN l.state = 'RUNNING' AND w.available_at >= l.deadline_at
                THEN 'deadline_exceeded' END AS task_code) c
        WHERE l.attempt_id = ANY (p_attempt)
          AND (l.state = 'LEASED' OR l.lease_until <= p_now)
    ) d;
    IF v.attempts IS NULL THEN
        RETURN;
    END IF;
    PERFORM settle_attempts_v1(v.attempts, v.attempt_states, v.task_states, v.task_codes,
        v.available, v.codes, v.nothing, v.messages, v.nothing, p_now);
    RETURN QUERY SELECT s.a, s.q, s.r, s.t = 'WAITING'
        FROM unnest(v.attempts, v.queues, v.routes, v.task_states) AS s (a, q, r, t);
END $$;
