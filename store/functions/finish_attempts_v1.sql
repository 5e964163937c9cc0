-- The end of attempts as their workers report it (R-126, R-140). A repeat is recognised before the
-- session and the lease are looked at (R-145); a new report needs the current owner's valid lease;
-- whatever is proven but comes too late is kept as evidence. A report comes from a session, or by
-- HTTP from an instance that proves itself and has no session to name (see renew_leases_v1).
CREATE OR REPLACE FUNCTION finish_attempts_v1(
    p_namespace uuid[], p_session uuid[], p_task uuid[], p_attempt uuid[], p_epoch bigint[],
    p_message uuid[], p_hash bytea[], p_outcome text[], p_code text[], p_result bytea[],
    p_now timestamptz DEFAULT NULL, p_instance uuid[] DEFAULT NULL,
    p_secret_hash bytea[] DEFAULT NULL
) RETURNS SETOF command_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_busy uuid[];
    v record;
BEGIN
    SELECT k.judged_at, k.busy INTO v_now, v_busy
        FROM lock_leases_v1(p_attempt, p_now, cardinality(p_attempt) = 1) k;
    WITH command AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.attempt ORDER BY c.ord) AS place
        FROM unnest(p_namespace, p_session, p_task, p_attempt, p_epoch, p_outcome, p_code,
                    p_instance, p_secret_hash)
             WITH ORDINALITY AS c (namespace, session, task, attempt, epoch, outcome, code,
                    instance, secret_hash, ord)
    ), judged AS (
        SELECT c.ord, c.outcome, c.code, l.intent, l.attempt_count, l.max_attempts, l.revision,
            l.lease_until, l.deadline_at,
            v_now + retry_delay_v1(l.initial_delay_ms, l.max_delay_ms, l.attempt_count)
                AS available_at,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN c.attempt = ANY (v_busy) THEN 'locked'
                WHEN c.instance IS NOT NULL THEN CASE
                    WHEN NOT holds_attempt_v1(c.namespace, c.instance, c.secret_hash, c.attempt)
                         OR l.task_id <> c.task OR l.epoch <> c.epoch THEN 'attempt_not_found'
                    WHEN l.attempt_id IS NULL THEN 'late'
                    WHEN l.state = 'LEASED' OR c.outcome = 'CANCELLED' AND l.intent IS NULL
                        THEN 'operation_conflict'
                    ELSE 'apply' END
                WHEN l.attempt_id IS NULL THEN CASE
                    WHEN s.closed_at IS NULL AND s.expires_at > v_now OR EXISTS (
                        SELECT 1 FROM attempt a WHERE a.id = c.attempt
                        AND a.finish_hash = p_hash[c.ord]) THEN 'late'
                    WHEN s.expires_at <= v_now AND s.closed_at IS NULL THEN 'session_expired'
                    ELSE 'session_superseded' END
                WHEN s.closed_at IS NOT NULL OR s.id IS NULL THEN 'session_superseded'
                WHEN s.expires_at <= v_now THEN 'session_expired'
                WHEN l.task_id <> c.task OR l.epoch <> c.epoch OR l.namespace_id <> c.namespace
                    THEN 'attempt_not_found'
                WHEN l.session_id <> c.session THEN 'resume_required'
                WHEN l.state = 'LEASED' OR c.outcome = 'CANCELLED' AND l.intent IS NULL
                    THEN 'operation_conflict'
                ELSE 'apply' END AS verdict
        FROM command c
        LEFT JOIN (SELECT * FROM lease WHERE attempt_id = ANY (p_attempt)) l
             ON l.attempt_id = c.attempt
        LEFT JOIN (SELECT * FROM session WHERE id = ANY (p_session)) s ON s.id = c.session
    ), decided AS (
        SELECT j.*,
            CASE WHEN j.outcome IN ('SUCCEEDED', 'UNKNOWN') THEN j.outcome
                 WHEN j.intent = 'caller' AND (j.outcome = 'CANCELLED' OR j.code = 'cancelled')
                      THEN 'CANCELLED'
                 ELSE 'FAILED' END AS attempt_state,
            CASE WHEN j.outcome = 'SUCCEEDED' THEN 'SUCCEEDED'
                 WHEN j.outcome = 'UNKNOWN' THEN 'NEEDS_REVIEW'
                 WHEN j.intent = 'caller' THEN 'CANCELLED'
                 WHEN j.intent = 'deadline' OR j.attempt_count >= j.max_attempts
                      OR j.available_at >= j.deadline_at OR j.code LIKE 'fatal.%'
                      OR j.code IN ('invalid_input', 'unsupported_capability') THEN 'FAILED'
                 ELSE 'WAITING' END AS task_state
        FROM judged j
    )
    SELECT array_agg(d.verdict ORDER BY d.ord) AS verdicts,
           array_agg(d.attempt_state ORDER BY d.ord) AS attempt_states,
           array_agg(d.task_state ORDER BY d.ord) AS task_states,
           array_agg(d.revision + 1 ORDER BY d.ord) AS revisions,
           array_agg(d.lease_until ORDER BY d.ord) AS untils,
           array_agg(d.available_at ORDER BY d.ord) AS available,
           array_agg(CASE WHEN d.task_state IN ('SUCCEEDED', 'WAITING', 'CANCELLED') THEN NULL
                          WHEN d.intent = 'deadline' AND d.task_state = 'FAILED'
                               THEN 'deadline_exceeded'
                          ELSE d.code END ORDER BY d.ord) AS task_codes,
           bool_and(d.verdict = 'apply') AS all_apply
    INTO v FROM decided d;

    IF 'CANCELLED' = ANY (p_outcome) OR 'cancelled' = ANY (p_code) THEN
        -- A stop that is confirmed says by itself that its worker had the news (OP-68).
        UPDATE lease l SET told_at = v_now
        FROM unnest(p_attempt, v.verdicts, p_outcome, p_code) AS c (attempt, verdict, outcome, code)
        WHERE l.attempt_id = c.attempt AND l.attempt_id = ANY (p_attempt) AND c.verdict = 'apply'
          AND l.intent IS NOT NULL AND l.told_at IS NULL
          AND (c.outcome = 'CANCELLED' OR c.code = 'cancelled');
    END IF;
    IF v.all_apply THEN
        PERFORM settle_attempts_v1(p_attempt, v.attempt_states, v.task_states, v.task_codes,
            v.available, p_code, p_result, p_message, p_hash, v_now);
    ELSE
        PERFORM settle_attempts_v1(array_agg(p_attempt[i]), array_agg(v.attempt_states[i]),
            array_agg(v.task_states[i]), array_agg(v.task_codes[i]), array_agg(v.available[i]),
            array_agg(p_code[i]), array_agg(p_result[i]), array_agg(p_message[i]),
            array_agg(p_hash[i]), v_now)
        FROM generate_subscripts(p_attempt, 1) AS i
        WHERE v.verdicts[i] = 'apply' HAVING count(*) > 0;
    END IF;

    RETURN QUERY
    SELECT o.* FROM unnest(v.verdicts, v.task_states, v.attempt_states, v.revisions, v.untils)
        WITH ORDINALITY AS d (verdict, task_state, attempt_state, revision, lease_until, i)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN d.verdict = 'apply' THEN 'ok' ELSE d.verdict END, d.task_state,
               d.attempt_state, d.revision, d.lease_until, 'APPLIED'::text, false, false,
               d.attempt_state, d.lease_until, v_now, d.verdict = 'apply'
        WHERE d.verdict <> 'late'
        UNION ALL
        SELECT k.* FROM late_command_v1('finish', p_namespace[d.i], p_task[d.i], p_attempt[d.i],
            p_epoch[d.i], p_message[d.i], p_hash[d.i], p_outcome[d.i], p_code[d.i],
            p_result[d.i], v_now) k
        WHERE d.verdict = 'late'
    ) o
    ORDER BY d.i;
END $$;
