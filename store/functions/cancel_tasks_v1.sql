-- Take tasks back (OP-43, OP-28): what waits or is not started is CANCELLED at once; what runs gets
-- an intent, once, and one window to report in (OP-03). Whoever commits first wins.
-- Codes: done · intent · state_conflict · not_found · idempotency_conflict · again · locked (another
-- transaction holds the task). A repeat gets its first answer. Session and node say whom to tell of an
-- attempt that is not wanted any more, and intent why, whatever the code: its deadline may have been
-- found passed by this very call, and the answer to a cancel that said so may have been lost.
CREATE OR REPLACE FUNCTION cancel_tasks_v1(
    p_namespace uuid[], p_task uuid[], p_key text[], p_hash bytea[], p_expected bigint[],
    p_reason text[], p_actor text[], p_now timestamptz DEFAULT NULL
) RETURNS SETOF task_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_live uuid[];
    v_busy uuid[];
    v record;
    v_ended uuid[];
BEGIN
    SELECT k.judged_at, k.live, k.busy INTO v_now, v_live, v_busy
        FROM lock_tasks_v1(p_task, p_now) k;
    WITH command AS MATERIALIZED (
        SELECT c.*, row_number() OVER (PARTITION BY c.task ORDER BY c.ord) AS place
        FROM unnest(p_namespace, p_task, p_key, p_hash, p_expected)
             WITH ORDINALITY AS c (namespace, task, key, hash, expected, ord)
    ), found AS (
        SELECT c.*, l.attempt_id, l.session_id, l.intent, t.queue_id, t.route_id, t.namespace_id,
               s.hash AS known_hash, s.code AS known_code, s.state AS known_state,
               s.revision AS known_revision, n.node_id,
               coalesce(l.state, CASE WHEN r.task_id IS NOT NULL THEN 'WAITING' END, t.state)
                   AS state,
               coalesce(l.revision, r.revision, t.revision) AS revision
        FROM command c
        LEFT JOIN (SELECT * FROM ready WHERE task_id = ANY (v_live)) r ON r.task_id = c.task
        LEFT JOIN (SELECT * FROM lease WHERE task_id = ANY (v_live)) l ON l.task_id = c.task
        LEFT JOIN LATERAL (SELECT k.namespace_id, k.queue_id, k.route_id, k.state, k.revision
                           FROM task k WHERE k.id = c.task LIMIT 1) t ON true
        LEFT JOIN LATERAL (SELECT k.hash, k.code, k.state, k.revision FROM submission k
                           WHERE k.namespace_id = c.namespace AND k.operation = 'task.cancel'
                             AND k.key = c.key AND k.scope = c.task LIMIT 1) s ON true
        LEFT JOIN LATERAL (SELECT k.node_id FROM session k WHERE k.id = l.session_id LIMIT 1) n
             ON true
    ), judged AS (
        SELECT f.*, CASE
            WHEN f.place > 1 THEN 'again'
            WHEN f.task = ANY (v_busy) THEN 'locked'
            WHEN f.namespace_id IS DISTINCT FROM f.namespace THEN 'not_found'
            WHEN f.known_hash = f.hash THEN 'repeat'
            WHEN f.known_hash IS NOT NULL THEN 'idempotency_conflict'
            WHEN f.revision <> f.expected THEN 'state_conflict'
            WHEN f.intent IS NOT NULL THEN 'known'
            WHEN f.state IN ('WAITING', 'LEASED', 'RUNNING') THEN f.state
            ELSE 'state_conflict' END AS verdict
        FROM found f
    ), answered AS (
        SELECT j.*,
            CASE WHEN j.verdict IN ('WAITING', 'LEASED') THEN 'done'
                 WHEN j.verdict IN ('RUNNING', 'known') THEN 'intent'
                 WHEN j.verdict = 'repeat' THEN j.known_code ELSE j.verdict END AS code,
            CASE WHEN j.verdict IN ('WAITING', 'LEASED') THEN 'CANCELLED'
                 WHEN j.verdict = 'repeat' THEN j.known_state ELSE j.state END AS state_after,
            CASE WHEN j.verdict IN ('WAITING', 'LEASED', 'RUNNING') THEN j.revision + 1
                 WHEN j.verdict = 'repeat' THEN j.known_revision ELSE j.revision END
                AS revision_after
        FROM judged j
    )
    SELECT array_agg(a.verdict ORDER BY a.ord) AS verdicts,
           array_agg(a.code ORDER BY a.ord) AS codes,
           array_agg(a.state_after ORDER BY a.ord) AS states,
           array_agg(a.revision_after ORDER BY a.ord) AS revisions,
           array_agg(a.queue_id ORDER BY a.ord) AS queues,
           array_agg(a.route_id ORDER BY a.ord) AS routes,
           array_agg(a.attempt_id ORDER BY a.ord) AS attempts,
           array_agg(a.session_id ORDER BY a.ord) AS sessions,
           array_agg(a.node_id ORDER BY a.ord) AS nodes,
           array_agg(CASE WHEN a.verdict IN ('LEASED', 'RUNNING') THEN 'caller' ELSE a.intent END
                     ORDER BY a.ord) AS intents
    INTO v FROM answered a;

    PERFORM settle_ready_v1(array_agg(p_task[i]), array_agg(v.states[i]), array_agg(p_reason[i]),
                            v_now)
        FROM generate_subscripts(p_task, 1) AS i
        WHERE v.verdicts[i] = 'WAITING' HAVING count(*) > 0;

    UPDATE lease l
    SET intent = 'caller', intent_at = v_now, intent_reason = p_reason[i.ord],
        revision = CASE WHEN l.state = 'RUNNING' THEN l.revision + 1 ELSE l.revision END,
        lease_until = CASE WHEN l.state = 'RUNNING'
            THEN greatest(l.lease_until, v_now + l.lease_ms * interval '1 ms')
            ELSE l.lease_until END
    FROM unnest(v.attempts, v.verdicts) WITH ORDINALITY AS i (attempt_id, verdict, ord)
    WHERE i.verdict IN ('LEASED', 'RUNNING') AND l.attempt_id = i.attempt_id
      AND l.attempt_id = ANY (v.attempts);

    v_ended := ARRAY(SELECT v.attempts[i] FROM generate_subscripts(p_task, 1) AS i
                     WHERE v.verdicts[i] = 'LEASED');
    IF cardinality(v_ended) > 0 THEN
        PERFORM settle_attempts_v1(v_ended, c.states, c.states, c.nothing, c.times, c.nothing,
                                   c.bytes, c.ids, c.bytes, v_now)
            FROM (SELECT array_agg('CANCELLED'::text) AS states, array_agg(NULL::text) AS nothing,
                         array_agg(NULL::timestamptz) AS times, array_agg(NULL::bytea) AS bytes,
                         array_agg(NULL::uuid) AS ids FROM unnest(v_ended)) c;
    END IF;

    INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, attempt_id,
                       occurred_at)
        SELECT p_namespace[i], 'task', p_task[i], v.revisions[i], 'task.cancel_requested',
               v.attempts[i], v_now
        FROM generate_subscripts(p_task, 1) AS i WHERE v.verdicts[i] = 'RUNNING';
    PERFORM keep_operations_v1('task.cancel', array_agg(p_namespace[i]), array_agg(p_task[i]),
            array_agg(p_key[i]), array_agg(p_hash[i]), array_agg(v.codes[i]),
            array_agg(v.states[i]), array_agg(v.revisions[i]), array_agg(p_actor[i]),
            array_agg(p_reason[i]), array_agg(NULL::bytea), v_now)
        FROM generate_subscripts(p_task, 1) AS i
        WHERE v.verdicts[i] IN ('WAITING', 'LEASED', 'RUNNING', 'known') HAVING count(*) > 0;

    RETURN QUERY
    SELECT d.code, d.state, d.revision, d.verdict = 'repeat', d.queue_id, d.route_id,
           t.attempt_id, t.session_id, t.node_id, t.intent
    FROM unnest(v.verdicts, v.codes, v.states, v.revisions, v.queues, v.routes, v.attempts,
                v.sessions, v.nodes, v.intents)
         WITH ORDINALITY AS d (verdict, code, state, revision, queue_id, route_id, attempt_id,
                               session_id, node_id, intent, ord)
    LEFT JOIN LATERAL (SELECT d.attempt_id, d.session_id, d.node_id, d.intent
                       WHERE d.intent IS NOT NULL) t ON true
    ORDER BY d.ord;
END $$;
