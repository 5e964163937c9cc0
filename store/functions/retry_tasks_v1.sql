-- A person gives settled tasks one more attempt (OP-44): from FAILED, CANCELLED or NEEDS_REVIEW, at
-- the revision that was seen, with a deadline that is still to come. A start deadline that has
-- passed is lifted. Codes: done · state_conflict · deadline_order · not_found · idempotency_conflict
-- · again. A repeat gets its first answer, whatever became of the task since.
CREATE OR REPLACE FUNCTION retry_tasks_v1(
    p_namespace uuid[], p_task uuid[], p_key text[], p_hash bytea[], p_expected bigint[],
    p_deadline timestamptz[], p_reason text[], p_actor text[], p_now timestamptz DEFAULT NULL
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
        FROM unnest(p_namespace, p_task, p_key, p_hash, p_expected, p_deadline)
             WITH ORDINALITY AS c (namespace, task, key, hash, expected, deadline, ord)
    ), judged AS (
        SELECT c.ord, c.task, t.queue_id, t.route_id, s.code, s.state AS known_state,
            s.revision AS known_revision, n.state, n.revision,
            coalesce(c.deadline, t.deadline_at) AS deadline_at, d.start_deadline_at,
            CASE
                WHEN c.place > 1 THEN 'again'
                WHEN t.namespace_id IS DISTINCT FROM c.namespace THEN 'not_found'
                WHEN s.hash = c.hash THEN 'repeat'
                WHEN s.hash IS NOT NULL THEN 'idempotency_conflict'
                WHEN NOT c.task = ANY (v_settled) OR t.state = 'SUCCEEDED'
                     OR t.revision <> c.expected THEN 'state_conflict'
                WHEN c.deadline <= v_now OR c.deadline < d.start_deadline_at
                    THEN 'deadline_order'
                WHEN c.deadline IS NULL AND t.deadline_at <= v_now OR t.attempt_count >= 100
                    THEN 'state_conflict'
                ELSE 'done' END AS verdict
        FROM command c
        LEFT JOIN LATERAL (SELECT * FROM task k WHERE k.id = c.task LIMIT 1) t ON true
        LEFT JOIN LATERAL (SELECT k.state, k.revision FROM task_now_v1(c.task) k LIMIT 1) n
             ON true
        LEFT JOIN LATERAL (SELECT k.hash, k.code, k.state, k.revision FROM submission k
                           WHERE k.namespace_id = c.namespace AND k.operation = 'task.retry'
                             AND k.key = c.key AND k.scope = c.task LIMIT 1) s ON true
        CROSS JOIN LATERAL (SELECT CASE WHEN t.attempt_count = 0 AND t.start_deadline_at > v_now
                                        THEN t.start_deadline_at END AS start_deadline_at) d
    )
    SELECT array_agg(j.verdict ORDER BY j.ord) AS verdicts,
           array_agg(CASE WHEN j.verdict = 'repeat' THEN j.code ELSE j.verdict END
                     ORDER BY j.ord) AS codes,
           array_agg(CASE j.verdict WHEN 'done' THEN 'WAITING' WHEN 'repeat' THEN j.known_state
                                    ELSE j.state END ORDER BY j.ord) AS states,
           array_agg(CASE j.verdict WHEN 'done' THEN j.revision + 1
                                    WHEN 'repeat' THEN j.known_revision
                                    ELSE j.revision END ORDER BY j.ord) AS revisions,
           array_agg(j.queue_id ORDER BY j.ord) AS queues,
           array_agg(j.route_id ORDER BY j.ord) AS routes,
           array_agg(j.deadline_at ORDER BY j.ord) AS deadlines,
           array_agg(j.start_deadline_at ORDER BY j.ord) AS start_deadlines
    INTO v FROM judged j;

    v_tasks := ARRAY(SELECT p_task[i] FROM generate_subscripts(p_task, 1) AS i
                     WHERE v.verdicts[i] = 'done' ORDER BY 1);
    IF cardinality(v_tasks) > 0 THEN
        WITH asked AS MATERIALIZED (
            SELECT a.* FROM unnest(p_task, v.verdicts, v.deadlines, v.start_deadlines)
                AS a (task_id, verdict, deadline_at, start_deadline_at) WHERE a.verdict = 'done'
        ), again AS (
            UPDATE task t
            SET state = NULL, revision = t.revision + 1, retried_at = v_now,
                max_attempts = least(t.max_attempts + 1, 100), deadline_at = a.deadline_at,
                start_deadline_at = CASE WHEN t.attempt_count = 0 THEN a.start_deadline_at
                                         ELSE t.start_deadline_at END,
                error_code = NULL, attempt_id = NULL,
                cancel_requested_at = NULL, cancel_reason = NULL, completed_at = NULL,
                resolved_at = NULL, resolve_reason = NULL
            FROM asked a
            WHERE t.id = a.task_id AND t.state IS NOT NULL AND t.id = ANY (v_tasks)
              AND t.id >= v_tasks[1] AND t.id <= v_tasks[cardinality(v_tasks)]
            RETURNING t.*, a.start_deadline_at AS start_by
        ), waiting AS (
            INSERT INTO ready (task_id, namespace_id, queue_id, route_id, gate_id, priority,
                available_at, expires_at, start_deadline_at, deadline_at, epoch, attempt_count,
                lapses, revision, recovery_safety, max_attempts, initial_delay_ms, max_delay_ms,
                attempt_timeout_ms)
            SELECT t.id, t.namespace_id, t.queue_id, t.route_id, q.gate_id, t.priority, v_now,
                   least(t.start_by, t.deadline_at), t.start_by, t.deadline_at, t.epoch,
                   t.attempt_count, 0, t.revision, t.recovery_safety, t.max_attempts,
                   t.initial_delay_ms, t.max_delay_ms, t.attempt_timeout_ms
            FROM again t
            CROSS JOIN LATERAL (SELECT k.gate_id FROM queue k WHERE k.id = t.queue_id LIMIT 1) q
        )
        INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, occurred_at)
        SELECT t.namespace_id, 'task', t.id, t.revision, 'task.waiting', v_now FROM again t;

        PERFORM keep_operations_v1('task.retry', array_agg(p_namespace[i]),
                array_agg(p_task[i]), array_agg(p_key[i]), array_agg(p_hash[i]),
                array_agg(v.codes[i]), array_agg(v.states[i]), array_agg(v.revisions[i]),
                array_agg(p_actor[i]), array_agg(p_reason[i]), array_agg(NULL::bytea), v_now)
            FROM generate_subscripts(p_task, 1) AS i WHERE v.verdicts[i] = 'done';
    END IF;

    RETURN QUERY
    SELECT d.code, d.state, d.revision, d.verdict = 'repeat', d.queue_id, d.route_id,
           NULL::uuid, NULL::uuid, NULL::uuid, NULL::text
    FROM unnest(v.verdicts, v.codes, v.states, v.revisions, v.queues, v.routes)
         WITH ORDINALITY AS d (verdict, code, state, revision, queue_id, route_id, ord)
    ORDER BY d.ord;
END $$;
