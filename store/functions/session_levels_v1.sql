-- Open sessions of live nodes and how many more attempts each may hold: declared capacity minus
-- leases held by the instance (the slow twin of the capacity stream, OP-29).
CREATE OR REPLACE FUNCTION session_levels_v1(
    p_queue uuid[], p_session uuid[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (session_id uuid, node_id uuid, instance_id uuid, queue_id uuid, routes bigint[],
                 free integer)
LANGUAGE sql STABLE AS $$
    SELECT s.id, s.node_id, s.instance_id, s.queue_id, i.routes,
           CASE WHEN i.draining OR n.draining THEN 0
                ELSE greatest(0, s.capacity - (SELECT count(*)::integer FROM lease l
                                               WHERE l.instance_id = s.instance_id)) END
    FROM session s
    JOIN worker_instance i ON i.id = s.instance_id
    JOIN node n ON n.id = s.node_id
    WHERE s.closed_at IS NULL AND s.expires_at > coalesce(p_now, clock_timestamp())
      AND (s.queue_id = ANY (p_queue) OR s.id = ANY (p_session))
$$;
