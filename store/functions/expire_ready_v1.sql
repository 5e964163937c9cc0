-- Fail tasks that waited past their start deadline or deadline (OP-26), at most p_limit.
CREATE OR REPLACE FUNCTION expire_ready_v1(p_limit integer, p_now timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_failed bigint;
    v_tasks uuid[];
BEGIN
    v_tasks := ARRAY(SELECT k.task_id FROM (
        SELECT r.task_id FROM ready r WHERE r.expires_at <= v_now
        ORDER BY r.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED) k ORDER BY k.task_id);
    IF cardinality(v_tasks) = 0 THEN
        RETURN 0;
    END IF;
    WITH late AS MATERIALIZED (
        SELECT r.* FROM ready r WHERE r.task_id = ANY (v_tasks)
    ), gone AS (
        DELETE FROM ready r WHERE r.task_id = ANY (v_tasks)
    ), settled AS (
        UPDATE task t SET state = 'FAILED', revision = l.revision + 1,
               attempt_count = l.attempt_count, completed_at = v_now,
               error_code = CASE WHEN l.start_deadline_at <= v_now THEN 'start_deadline_exceeded'
                                 ELSE 'deadline_exceeded' END
        FROM late l WHERE t.id = l.task_id AND t.state IS NULL
          AND t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
          AND t.id <= v_tasks[cardinality(v_tasks)]
    ), told AS (
        INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, occurred_at)
        SELECT l.namespace_id, 'task', l.task_id, l.revision + 1, 'task.failed', v_now FROM late l
    )
    SELECT count(*) INTO v_failed FROM late;
    RETURN v_failed;
END $$;
