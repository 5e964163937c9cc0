-- The one writer of a waiting task's end: FAILED when it waited past a deadline (OP-26), CANCELLED
-- when its caller wants it no more (OP-43). The caller of this holds the locks of the ready rows.
CREATE OR REPLACE FUNCTION settle_ready_v1(
    p_task uuid[], p_state text[], p_reason text[], p_now timestamptz
) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    -- The bounds let the update below prune partitions when it starts.
    v_tasks uuid[] := ARRAY(SELECT u.id FROM unnest(p_task) AS u (id) ORDER BY u.id);
BEGIN
    WITH ended AS MATERIALIZED (
        SELECT r.*, v.state, v.reason
        FROM unnest(p_task, p_state, p_reason) AS v (task_id, state, reason)
        JOIN ready r ON r.task_id = v.task_id
        WHERE r.task_id = ANY (v_tasks)
    ), gone AS (
        DELETE FROM ready r WHERE r.task_id = ANY (v_tasks)
    ), settled AS (
        UPDATE task t SET state = e.state, revision = e.revision + 1,
               attempt_count = e.attempt_count, epoch = e.epoch, completed_at = p_now,
               error_code = CASE WHEN e.state = 'CANCELLED' THEN NULL
                                 WHEN e.start_deadline_at <= p_now THEN 'start_deadline_exceeded'
                                 ELSE 'deadline_exceeded' END,
               cancel_requested_at = CASE WHEN e.state = 'CANCELLED' THEN p_now END,
               cancel_reason = e.reason
        FROM ended e WHERE t.id = e.task_id AND t.state IS NULL
          AND t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
          AND t.id <= v_tasks[cardinality(v_tasks)]
    )
    INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, occurred_at)
    SELECT e.namespace_id, 'task', e.task_id, e.revision + 1, 'task.' || lower(e.state), p_now
    FROM ended e;
END $$;
