-- The sweep: settle leases that ran out in silence, at most p_limit (OP-23, INV-6). Rows that
-- somebody else is working on, or whose task somebody holds, are left to the next sweep; a lease
-- renewed meanwhile is judged by its new end.
-- A row with a session and a node is no lapse: the task's deadline has passed, the attempt has one
-- window to report in, and that node is to tell its worker so (OP-26).
CREATE OR REPLACE FUNCTION expire_leases_v1(p_limit integer, p_now timestamptz DEFAULT NULL)
RETURNS TABLE (attempt_id uuid, queue_id uuid, route_id bigint, waiting boolean,
               session_id uuid, node_id uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_over uuid[];
    v_tasks uuid[];
BEGIN
    SELECT array_agg(k.attempt_id) INTO v_over FROM (
        SELECT l.attempt_id FROM lease l WHERE l.lease_until <= v_now
        ORDER BY l.attempt_id LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) k;
    IF v_over IS NOT NULL THEN
        v_tasks := pass_held_tasks_v1(ARRAY(
            SELECT l.task_id FROM lease l WHERE l.attempt_id = ANY (v_over)));
        v_over := ARRAY(SELECT l.attempt_id FROM lease l
                        WHERE l.attempt_id = ANY (v_over) AND l.task_id = ANY (v_tasks));
        RETURN QUERY SELECT k.*, NULL::uuid, NULL::uuid FROM lapse_leases_v1(v_over, v_now) k;
        -- Whatever was over and is still here was given its window just now.
        RETURN QUERY SELECT l.attempt_id, l.queue_id, l.route_id, false, l.session_id, s.node_id
            FROM lease l
            CROSS JOIN LATERAL (SELECT k.node_id FROM session k
                                WHERE k.id = l.session_id LIMIT 1) s
            WHERE l.attempt_id = ANY (v_over);
    END IF;
END $$;
