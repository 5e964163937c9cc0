-- A person says how tasks in NEEDS_REVIEW ended (OP-32), at the revision that was seen, with a
-- reason and the evidence it rests on. Codes: done · state_conflict · not_found ·
-- idempotency_conflict · again. A repeat gets its first answer.
CREATE OR REPLACE FUNCTION resolve_tasks_v1(
    p_namespace uuid[], p_task uuid[], p_key text[], p_hash bytea[], p_expected bigint[],
    p_outcome text[], p_reason text[], p_actor text[], p_evidence bytea[],
    p_now timestamptz DEFAULT NULL
) RETURNS SETOF task_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_settled uuid[] := lock_settled_v1(p_task);
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v record;
    v_tasks uuid[];
BEGIN
    WITH command AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.task ORDER BY c.ord) AS place
        FROM unnest(p_namespace, p_task, p_key, p_hash, p_expected, p_outcome)
             WITH ORDINALITY AS c (namespace, task, key, hash, expected, outcome, ord)
    ), judged AS (
        SELECT c.ord, c.outcome, t.queue_id, t.route_id, s.code, s.state AS known_state,
            s.revision AS known_revision, n.state, n.revision,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN t.namespace_id IS DISTINCT FROM c.namespace THEN 'not_found'
                WHEN s.hash = c.hash THEN 'repeat'
                WHEN s.hash IS NOT NULL THEN 'idempotency_conflict'
                WHEN NOT c.task = ANY (v_settled) OR t.state IS DISTINCT FROM 'NEEDS_REVIEW'
                     OR t.revision <> c.expected THEN 'state_conflict'
                ELSE 'done' END AS verdict
        FROM command c
        LEFT JOIN LATERAL (SELECT k.namespace_id, k.queue_id, k.route_id, k.state, k.revision
                           FROM task k WHERE k.id = c.task LIMIT 1) t ON true
        LEFT JOIN LATERAL (SELECT k.state, k.revision FROM task_now_v1(c.task) k LIMIT 1) n
             ON true
        LEFT JOIN LATERAL (SELECT k.hash, k.code, k.state, k.revision FROM submission k
                           WHERE k.namespace_id = c.namespace AND k.operation = 'task.resolve'
                             AND k.key = c.key AND k.scope = c.task LIMIT 1) s ON true
    )
    SELECT array_agg(j.verdict ORDER BY j.ord) AS verdicts,
           array_agg(CASE WHEN j.verdict = 'repeat' THEN j.code ELSE j.verdict END
                     ORDER BY j.ord) AS codes,
           array_agg(CASE j.verdict WHEN 'done' THEN j.outcome WHEN 'repeat' THEN j.known_state
                                    ELSE j.state END ORDER BY j.ord) AS states,
           array_agg(CASE j.verdict WHEN 'done' THEN j.revision + 1
                                    WHEN 'repeat' THEN j.known_revision
                                    ELSE j.revision END ORDER BY j.ord) AS revisions,
           array_agg(j.queue_id ORDER BY j.ord) AS queues,
           array_agg(j.route_id ORDER BY j.ord) AS routes
    INTO v FROM judged j;

    v_tasks := ARRAY(SELECT p_task[i] FROM generate_subscripts(p_task, 1) AS i
                     WHERE v.verdicts[i] = 'done' ORDER BY 1);
    IF cardinality(v_tasks) > 0 THEN
        WITH asked AS MATERIALIZED (
            SELECT a.* FROM unnest(p_task, v.verdicts, p_outcome, p_reason)
                AS a (task_id, verdict, outcome, reason) WHERE a.verdict = 'done'
        ), ended AS (
            UPDATE task t
            SET state = a.outcome, revision = t.revision + 1, completed_at = v_now,
                resolved_at = v_now, resolve_reason = a.reason,
                error_code = CASE WHEN a.outcome = 'FAILED' THEN t.error_code END,
                cancel_requested_at = CASE WHEN a.outcome = 'CANCELLED'
                    THEN coalesce(t.cancel_requested_at, v_now) ELSE t.cancel_requested_at END,
                cancel_reason = CASE WHEN a.outcome = 'CANCELLED'
                    THEN coalesce(t.cancel_reason, a.reason) ELSE t.cancel_reason END
            FROM asked a
            WHERE t.id = a.task_id AND t.state = 'NEEDS_REVIEW' AND t.id = ANY (v_tasks)
              AND t.id >= v_tasks[1] AND t.id <= v_tasks[cardinality(v_tasks)]
            RETURNING t.namespace_id, t.id, t.revision, t.state
        )
        INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, occurred_at)
        SELECT e.namespace_id, 'task', e.id, e.revision, 'task.' || lower(e.state), v_now
        FROM ended e;

        PERFORM keep_operations_v1('task.resolve', array_agg(p_namespace[i]),
                array_agg(p_task[i]), array_agg(p_key[i]), array_agg(p_hash[i]),
                array_agg(v.codes[i]), array_agg(v.states[i]), array_agg(v.revisions[i]),
                array_agg(p_actor[i]), array_agg(p_reason[i]), array_agg(p_evidence[i]), v_now)
            FROM generate_subscripts(p_task, 1) AS i WHERE v.verdicts[i] = 'done';
    END IF;

    RETURN QUERY
    SELECT d.code, d.state, d.revision, d.verdict = 'repeat', d.queue_id, d.route_id,
           NULL::uuid, NULL::uuid, NULL::uuid, NULL::text
    FROM unnest(v.verdicts, v.codes, v.states, v.revisions, v.queues, v.routes)
         WITH ORDINALITY AS d (verdict, code, state, revision, queue_id, route_id, ord)
    ORDER BY d.ord;
END $$;
