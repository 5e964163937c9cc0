-- Give up nodes whose beat is older than p_dead_after_ms and close their sessions, and sessions
-- whose node is not known at all; a session that somebody holds is left to the next call. Returns the
-- given-up nodes and the routes to wake.
CREATE OR REPLACE FUNCTION reap_nodes_v1(
    p_dead_after_ms bigint, p_now timestamptz DEFAULT NULL
) RETURNS TABLE (node_id uuid, queue_id uuid, route_id bigint)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
    v_dead uuid[];
    v_session uuid[];
BEGIN
    WITH dead AS (
        DELETE FROM node n WHERE n.id IN (
            SELECT k.id FROM node k
            WHERE k.beat_at < v_now - p_dead_after_ms * interval '1 ms'
            ORDER BY k.id FOR UPDATE SKIP LOCKED)
        RETURNING n.id)
    SELECT array_agg(d.id) INTO v_dead FROM dead d;
    SELECT array_agg(s.id) INTO v_session FROM session s
        WHERE s.closed_at IS NULL AND s.opened_at < v_now - p_dead_after_ms * interval '1 ms'
          AND NOT EXISTS (SELECT 1 FROM node n WHERE n.id = s.node_id);
    RETURN QUERY SELECT d.id, NULL::uuid, NULL::bigint FROM unnest(v_dead) AS d (id);
    IF v_session IS NOT NULL THEN
        v_session := ARRAY(SELECT k.id FROM (
            SELECT s.id FROM session s WHERE s.id = ANY (v_session)
            ORDER BY s.id FOR NO KEY UPDATE SKIP LOCKED) k);
        RETURN QUERY SELECT NULL::uuid, c.queue_id, c.route_id
            FROM close_sessions_v1(v_session,
                array_fill('node_lost'::text, ARRAY[cardinality(v_session)]), p_now) c;
    END IF;
END $$;
