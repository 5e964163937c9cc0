-- Extend valid leases and keep a receipt for each new message (R-125, OP-12, OP-21). Under an
-- intent nothing is extended: the answer says inactive, and that is how a worker hears of it (OP-03).
-- A command comes from a session, or by HTTP from an instance that proves itself and has no session
-- to name; then p_instance and p_secret_hash judge, and whatever session holds the lease keeps it.
CREATE OR REPLACE FUNCTION renew_leases_v1(
    p_namespace uuid[], p_session uuid[], p_task uuid[], p_attempt uuid[], p_epoch bigint[],
    p_message uuid[], p_now timestamptz DEFAULT NULL, p_instance uuid[] DEFAULT NULL,
    p_secret_hash bytea[] DEFAULT NULL
) RETURNS SETOF command_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_busy uuid[];
BEGIN
    SELECT k.judged_at, k.busy INTO v_now, v_busy
        FROM lock_leases_v1(p_attempt, p_now, cardinality(p_attempt) = 1) k;
    RETURN QUERY
    WITH command AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.attempt ORDER BY c.ord) AS place
        FROM unnest(p_namespace, p_session, p_task, p_attempt, p_epoch, p_message, p_instance,
                    p_secret_hash)
             WITH ORDINALITY AS c (namespace, session, task, attempt, epoch, message, instance,
                    secret_hash, ord)
    ), judged AS MATERIALIZED (
        SELECT c.*, l.state, l.revision, l.lease_until,
            least(v_now + l.lease_ms * interval '1 ms',
                  coalesce(l.attempt_deadline_at, l.start_deadline_at, l.deadline_at),
                  l.deadline_at) AS renewed_until,
            r.lease_until AS receipt_until, r.task_state AS receipt_state,
            r.task_revision AS receipt_revision,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN c.attempt = ANY (v_busy) THEN 'locked'
                WHEN c.instance IS NOT NULL THEN CASE
                    WHEN NOT holds_attempt_v1(c.namespace, c.instance, c.secret_hash, c.attempt)
                         OR l.task_id <> c.task OR l.epoch <> c.epoch THEN 'attempt_not_found'
                    WHEN l.attempt_id IS NULL OR l.intent IS NOT NULL THEN 'late'
                    WHEN r.attempt_id IS NOT NULL THEN 'repeat'
                    ELSE 'apply' END
                WHEN s.closed_at IS NOT NULL OR s.id IS NULL THEN 'session_superseded'
                WHEN s.expires_at <= v_now THEN 'session_expired'
                WHEN l.attempt_id IS NULL THEN 'late'
                WHEN l.task_id <> c.task OR l.epoch <> c.epoch OR l.namespace_id <> c.namespace
                    THEN 'attempt_not_found'
                WHEN l.session_id <> c.session THEN 'resume_required'
                WHEN l.intent IS NOT NULL THEN 'late'
                WHEN r.attempt_id IS NOT NULL THEN 'repeat'
                ELSE 'apply' END AS verdict
        FROM command c
        LEFT JOIN (SELECT * FROM lease WHERE attempt_id = ANY (p_attempt)) l
             ON l.attempt_id = c.attempt
        LEFT JOIN (SELECT * FROM session WHERE id = ANY (p_session)) s ON s.id = c.session
        LEFT JOIN LATERAL (
            SELECT * FROM receipt k WHERE k.attempt_id = c.attempt AND k.operation = 'renew'
            AND k.message_id = c.message LIMIT 1) r ON true
    ), applied AS (
        UPDATE lease l SET lease_until = j.renewed_until FROM judged j
        WHERE j.verdict = 'apply' AND l.attempt_id = j.attempt
          AND l.attempt_id = ANY (p_attempt)
    ), kept AS (
        INSERT INTO receipt
        SELECT j.attempt, 'renew', j.message, NULL, j.state, j.state, j.revision,
               j.renewed_until, 'APPLIED', v_now
        FROM judged j WHERE j.verdict = 'apply'
    )
    SELECT o.* FROM judged j
    CROSS JOIN LATERAL (
        SELECT CASE WHEN j.verdict IN ('apply', 'repeat') THEN 'ok' ELSE j.verdict END,
               coalesce(j.receipt_state, j.state), coalesce(j.receipt_state, j.state),
               coalesce(j.receipt_revision, j.revision),
               coalesce(j.receipt_until, j.renewed_until), 'APPLIED'::text,
               j.verdict = 'repeat', true, j.state,
               CASE WHEN j.verdict = 'apply' THEN j.renewed_until ELSE j.lease_until END,
               v_now, false
        WHERE j.verdict <> 'late'
        UNION ALL
        SELECT k.* FROM late_command_v1('renew', j.namespace, j.task, j.attempt, j.epoch, j.message, NULL,
            NULL, NULL, NULL, v_now) k
        WHERE j.verdict = 'late'
    ) o
    ORDER BY j.ord;
END $$;
