-- Open sessions of live nodes and how many more attempts each may hold: declared capacity minus
-- leases held by the instance (the slow twin of the capacity stream, OP-29).
CREATE OR REPLACE FUNCTION session_levels_v1(
    p_queue uuid[], p_session uuid[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (session_id uuid, node_id uuid, instance_id uuid, queue_id uuid, routes bigint[],
                 free integer)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_mergejoin = off AS $$
    SELECT s.id, s.node_id, s.instance_id, s.queue_id, i.routes,
           CASE WHEN i.draining OR n.draining THEN 0
                ELSE greatest(0, s.capacity - (SELECT count(*)::integer FROM lease l
                                               WHERE l.instance_id = s.instance_id)) END
    FROM (SELECT k.id, k.node_id, k.instance_id, k.queue_id, k.capacity, k.expires_at FROM session k
          WHERE k.queue_id = ANY (p_queue) AND k.closed_at IS NULL
          UNION
          SELECT k.id, k.node_id, k.instance_id, k.queue_id, k.capacity, k.expires_at FROM session k
          WHERE k.id = ANY (p_session) AND k.closed_at IS NULL) s
    CROSS JOIN LATERAL (SELECT k.routes, k.draining FROM worker_instance k
                        WHERE k.id = s.instance_id LIMIT 1) i
    CROSS JOIN LATERAL (SELECT k.draining FROM node k WHERE k.id = s.node_id LIMIT 1) n
    WHERE s.expires_at > coalesce(p_now, clock_timestamp())
$$;
