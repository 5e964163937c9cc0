-- Give leases back that were granted to a session and never written to its socket, because a drain
-- came first: nobody was authorised to run them, so their tasks wait again at once (INV-15). One
-- that was started, settled or moved meanwhile stays as it is, and so does one that another
-- transaction holds: it settles it, or the lease runs out. Returns what waits again, to wake.
CREATE OR REPLACE FUNCTION return_leases_v1(
    p_attempt uuid[], p_session uuid[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (queue_id uuid, route_id bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_busy uuid[];
    v_back uuid[];
BEGIN
    SELECT k.judged_at, k.busy INTO v_now, v_busy
        FROM lock_leases_v1(p_attempt, p_now, cardinality(p_attempt) = 1) k;
    v_back := ARRAY(
        SELECT l.attempt_id FROM (SELECT * FROM lease WHERE attempt_id = ANY (p_attempt)) l
        JOIN unnest(p_attempt, p_session) AS c (attempt, session) ON c.attempt = l.attempt_id
        WHERE l.session_id = c.session AND l.state = 'LEASED' AND l.attempt_id <> ALL (v_busy));
    IF cardinality(v_back) > 0 THEN
        RETURN QUERY SELECT b.queue_id, b.route_id FROM lapse_leases_v1(v_back, v_now) b
            WHERE b.waiting;
    END IF;
END $$;
