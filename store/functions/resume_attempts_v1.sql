-- Move a held attempt to the instance's new session, if it is still held (OP-14). Never extends,
-- never revives. Unknown, foreign and mismatched attempts get one and the same answer.
CREATE OR REPLACE FUNCTION resume_attempts_v1(
    p_namespace uuid[], p_session uuid[], p_task uuid[], p_attempt uuid[], p_epoch bigint[],
    p_now timestamptz DEFAULT NULL
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
        FROM unnest(p_namespace, p_session, p_task, p_attempt, p_epoch)
             WITH ORDINALITY AS c (namespace, session, task, attempt, epoch, ord)
    ), judged AS MATERIALIZED (
        SELECT c.*, coalesce(l.state, a.state) AS state,
            coalesce(l.lease_until, a.lease_until) AS lease_until,
            l.attempt_id IS NOT NULL AND l.intent IS NULL AS active,
            l.attempt_id IS NULL AS settled,
            l.session_id <> c.session OR l.intent IS NOT NULL AS changes,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN c.attempt = ANY (v_busy) THEN 'locked'
                WHEN s.closed_at IS NOT NULL OR s.id IS NULL THEN 'session_superseded'
                WHEN s.expires_at <= v_now THEN 'session_expired'
                WHEN coalesce(l.task_id, a.task_id) = c.task
                     AND coalesce(l.epoch, a.epoch) = c.epoch
                     AND coalesce(l.namespace_id, a.namespace_id) = c.namespace
                     AND coalesce(l.instance_id, a.instance_id) = s.instance_id THEN 'ok'
                ELSE 'attempt_not_found' END AS verdict
        FROM command c
        LEFT JOIN (SELECT * FROM lease WHERE attempt_id = ANY (p_attempt)) l
             ON l.attempt_id = c.attempt
        LEFT JOIN (SELECT * FROM session WHERE id = ANY (p_session)) s ON s.id = c.session
        LEFT JOIN LATERAL (SELECT * FROM attempt k WHERE k.id = c.attempt LIMIT 1) a ON true
    ), moved AS (
        -- Under an intent the answer is the news, or comes after it (OP-68).
        UPDATE lease l SET session_id = j.session,
            told_at = CASE WHEN l.intent IS NULL THEN l.told_at
                           ELSE coalesce(l.told_at, v_now) END,
            acknowledged_at = CASE WHEN l.told_at IS NULL THEN NULL
                                   ELSE coalesce(l.acknowledged_at, v_now) END
        FROM judged j
        WHERE j.verdict = 'ok' AND j.changes AND l.attempt_id = j.attempt
          AND l.attempt_id = ANY (p_attempt)
    )
    SELECT j.verdict, NULL::text, NULL::text, NULL::bigint, NULL::timestamptz, NULL::text,
           false, coalesce(o.active, false), o.state, o.lease_until, v_now,
           coalesce(o.settled, false)
    FROM judged j
    -- A refusal tells nothing about an attempt that its caller may not know (INV-21).
    LEFT JOIN LATERAL (SELECT j.active, j.state, j.lease_until, j.settled
                       WHERE j.verdict = 'ok') o ON true
    ORDER BY j.ord;
END $$;
