-- Close sessions, once. What was assigned and not started goes back at once, since nobody was
-- authorised to run it; what runs keeps its lease, so that the worker can resume elsewhere. A lease
-- that another transaction holds is left to it, or to its own end.
-- Returns the queue and route of each task that waits again.
CREATE OR REPLACE FUNCTION close_sessions_v1(
    p_session uuid[], p_reason text[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (queue_id uuid, route_id bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_instance uuid[];
    v_back uuid[];
BEGIN
    PERFORM 1 FROM session s WHERE s.id = ANY (p_session) AND s.closed_at IS NULL
        ORDER BY s.id FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    UPDATE session s SET closed_at = v_now, close_reason = c.reason
        FROM unnest(p_session, p_reason) AS c (id, reason)
        WHERE s.id = c.id AND s.id = ANY (p_session) AND s.closed_at IS NULL;
    v_instance := ARRAY(SELECT s.instance_id FROM session s WHERE s.id = ANY (p_session));
    v_back := ARRAY(SELECT l.attempt_id FROM lease l
                    WHERE l.instance_id = ANY (v_instance) AND l.session_id = ANY (p_session)
                      AND l.state = 'LEASED');
    SELECT array_agg(k.attempt_id) INTO v_back FROM (
        SELECT l.attempt_id FROM lease l WHERE l.attempt_id = ANY (v_back) AND l.state = 'LEASED'
        ORDER BY l.attempt_id FOR NO KEY UPDATE SKIP LOCKED) k;
    IF v_back IS NOT NULL THEN
        RETURN QUERY SELECT b.queue_id, b.route_id FROM lapse_leases_v1(v_back, v_now) b
            WHERE b.waiting;
    END IF;
END $$;
