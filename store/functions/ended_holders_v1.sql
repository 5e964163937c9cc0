-- Attempts that are over, and the node of the open session that had each of them last: somebody
-- reported past that session's socket, so its gateway counts a slot that it is to be told of.
CREATE OR REPLACE FUNCTION ended_holders_v1(p_attempt uuid[])
RETURNS TABLE (node_id uuid, session_id uuid, attempt_id uuid)
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_mergejoin = off SET enable_hashjoin = off
AS $$
    SELECT s.node_id, s.id, a.id
    FROM unnest(p_attempt) AS c (id)
    CROSS JOIN LATERAL (SELECT k.id, k.session_id FROM attempt k WHERE k.id = c.id LIMIT 1) a
    CROSS JOIN LATERAL (SELECT k.id, k.node_id FROM session k
                        WHERE k.id = a.session_id AND k.closed_at IS NULL LIMIT 1) s
$$;
