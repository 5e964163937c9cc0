-- LEASED to RUNNING, once, for the current owner with a valid lease under an open gate (R-131,
-- R-132). A second start of a running attempt gets the original receipt, for ever (INV-8); a first
-- one of an attempt that is over gets its final answer.
CREATE OR REPLACE FUNCTION start_attempts_v1(
    p_namespace uuid[], p_session uuid[], p_gate bigint[], p_task uuid[], p_attempt uuid[],
    p_epoch bigint[], p_message uuid[], p_now timestamptz DEFAULT NULL
) RETURNS SETOF command_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_busy uuid[];
BEGIN
    PERFORM lock_gates_v1(p_gate);
    SELECT k.judged_at, k.busy INTO v_now, v_busy
        FROM lock_leases_v1(p_attempt, p_now, cardinality(p_attempt) = 1) k;
    RETURN QUERY
    WITH command AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.attempt ORDER BY c.ord) AS place
        FROM unnest(p_namespace, p_session, p_task, p_attempt, p_epoch, p_message)
             WITH ORDINALITY AS c (namespace, session, task, attempt, epoch, message, ord)
    ), judged AS MATERIALIZED (
        SELECT c.*, l.session_id, l.intent, l.lease_until, l.start_revision, l.start_lease_until,
            l.start_message_id,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN c.attempt = ANY (v_busy) THEN 'locked'
                WHEN s.closed_at IS NOT NULL OR s.id IS NULL THEN 'session_superseded'
                WHEN s.expires_at <= v_now THEN 'session_expired'
                WHEN l.attempt_id IS NULL THEN 'late'
                WHEN l.task_id <> c.task OR l.epoch <> c.epoch OR l.namespace_id <> c.namespace
                    THEN 'attempt_not_found'
                WHEN l.session_id <> c.session THEN 'resume_required'
                WHEN l.state = 'RUNNING' THEN 'repeat'
                WHEN l.intent IS NOT NULL THEN 'late'
                WHEN g.paused IS DISTINCT FROM false THEN 'execution_gated'
                ELSE 'apply' END AS verdict
        FROM command c
        LEFT JOIN (SELECT * FROM lease WHERE attempt_id = ANY (p_attempt)) l
             ON l.attempt_id = c.attempt
        LEFT JOIN (SELECT * FROM session WHERE id = ANY (p_session)) s ON s.id = c.session
        LEFT JOIN (SELECT * FROM gate WHERE id = ANY (p_gate)) g ON g.id = l.gate_id
    ), applied AS (
        UPDATE lease l
        SET state = 'RUNNING', started_at = v_now, revision = l.revision + 1,
            attempt_deadline_at =
                least(v_now + l.attempt_timeout_ms * interval '1 ms', l.deadline_at),
            lease_until = least(v_now + least(l.lease_ms, l.attempt_timeout_ms)
                                * interval '1 ms', l.deadline_at),
            start_message_id = j.message, start_revision = l.revision + 1,
            start_lease_until = least(v_now + least(l.lease_ms, l.attempt_timeout_ms)
                                      * interval '1 ms', l.deadline_at)
        FROM judged j
        WHERE j.verdict = 'apply' AND l.attempt_id = j.attempt
          AND l.attempt_id = ANY (p_attempt)
        RETURNING l.attempt_id, l.start_revision, l.lease_until
    ), told AS (
        -- The answer says inactive, and that is how its worker hears of an intent (OP-03, OP-68).
        UPDATE lease l SET acknowledged_at = CASE WHEN l.told_at IS NOT NULL THEN v_now END,
                           told_at = coalesce(l.told_at, v_now)
        FROM judged j
        WHERE j.verdict = 'repeat' AND j.intent IS NOT NULL AND l.attempt_id = j.attempt
          AND l.attempt_id = ANY (p_attempt) AND l.acknowledged_at IS NULL
    ), kept AS (
        -- Answered under a message id of its own, so under that it is the same after the end too.
        INSERT INTO receipt
        SELECT j.attempt, 'start', j.message, NULL, 'RUNNING', 'RUNNING', j.start_revision,
               j.start_lease_until, 'APPLIED', v_now
        FROM judged j WHERE j.verdict = 'repeat' AND j.message <> j.start_message_id
        ON CONFLICT DO NOTHING
    )
    SELECT o.* FROM judged j
    LEFT JOIN applied a ON j.verdict = 'apply' AND a.attempt_id = j.attempt
    CROSS JOIN LATERAL (
        SELECT CASE WHEN j.verdict IN ('apply', 'repeat') THEN 'ok' ELSE j.verdict END,
               'RUNNING'::text, 'RUNNING'::text, coalesce(a.start_revision, j.start_revision),
               coalesce(a.lease_until, j.start_lease_until), 'APPLIED'::text,
               j.verdict = 'repeat', j.intent IS NULL, 'RUNNING'::text,
               coalesce(a.lease_until, j.lease_until), v_now, false
        WHERE j.verdict <> 'late'
        UNION ALL
        SELECT k.* FROM late_command_v1('start', j.namespace, j.task, j.attempt, j.epoch, j.message, NULL,
            NULL, NULL, NULL, v_now) k
        WHERE j.verdict = 'late'
    ) o
    ORDER BY j.ord;
END $$;
