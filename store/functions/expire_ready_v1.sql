-- Fail tasks that waited past their start deadline or deadline (OP-26), at most p_limit. What somebody
-- else holds is left to the next sweep.
CREATE OR REPLACE FUNCTION expire_ready_v1(p_limit integer, p_now timestamptz DEFAULT NULL)
RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_tasks uuid[];
    v_failed integer;
BEGIN
    v_tasks := pass_held_tasks_v1(ARRAY(SELECT k.task_id FROM (
        SELECT r.task_id FROM ready r WHERE r.expires_at <= v_now
        ORDER BY r.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED) k));
    v_failed := cardinality(v_tasks);
    IF v_failed > 0 THEN
        PERFORM settle_ready_v1(v_tasks, array_fill('FAILED'::text, ARRAY[v_failed]),
                                array_fill(NULL::text, ARRAY[v_failed]), v_now);
    END IF;
    RETURN v_failed;
END $$;
