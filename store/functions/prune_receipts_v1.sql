-- Forget renew receipts older than p_keep_ms, at most p_limit. Those of start and finish live on the
-- attempt; EVIDENCE_ONLY answers stay, since they are final.
CREATE OR REPLACE FUNCTION prune_receipts_v1(
    p_keep_ms bigint, p_limit integer, p_now timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql AS $$
    WITH old AS (
        SELECT r.attempt_id, r.operation, r.message_id FROM receipt r
        WHERE r.created_at < coalesce(p_now, clock_timestamp()) - p_keep_ms * interval '1 ms'
          AND r.operation = 'renew' AND r.disposition = 'APPLIED'
        ORDER BY r.created_at LIMIT p_limit
    ), gone AS (
        DELETE FROM receipt r USING old o WHERE r.attempt_id = o.attempt_id
            AND r.operation = o.operation AND r.message_id = o.message_id RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
