-- Candidates for dispatch: per route at most its limit of due tasks, highest priority first, then
-- longest available, then oldest (OP-30). Walks the priority levels of a route one by one, each a
-- range on the index, so tasks that are due tomorrow never stand in front of tasks due now.
CREATE OR REPLACE FUNCTION peek_ready_v1(
    p_route bigint[], p_limit integer[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (task_id uuid, route_id bigint, priority smallint, available_at timestamptz)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_route bigint;
    v_left integer;
    v_taken integer;
    v_level smallint;
BEGIN
    FOR v_route, v_left IN
        SELECT i.route, i.wanted
        FROM unnest(p_route, p_limit) AS i (route, wanted)
        JOIN route r ON r.id = i.route
        JOIN queue q ON q.id = r.queue_id
        JOIN gate g ON g.id = q.gate_id
        WHERE NOT g.paused
    LOOP
        SELECT r.priority INTO v_level FROM ready r
            WHERE r.route_id = v_route ORDER BY r.priority DESC LIMIT 1;
        WHILE v_level IS NOT NULL AND v_left > 0 LOOP
            RETURN QUERY
                SELECT r.task_id, r.route_id, r.priority, r.available_at FROM ready r
                WHERE r.route_id = v_route AND r.priority = v_level
                  AND r.available_at <= v_now AND r.expires_at > v_now
                ORDER BY r.available_at, r.task_id LIMIT v_left;
            GET DIAGNOSTICS v_taken = ROW_COUNT;
            v_left := v_left - v_taken;
            EXIT WHEN v_left <= 0;
            SELECT r.priority INTO v_level FROM ready r
                WHERE r.route_id = v_route AND r.priority < v_level
                ORDER BY r.priority DESC LIMIT 1;
        END LOOP;
    END LOOP;
END $$;
