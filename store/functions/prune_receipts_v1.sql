-- Forget renew receipts older than p_keep_ms, at most p_limit, whatever they answered. Those of
-- start and finish live as long as the attempt.
CREATE OR REPLACE FUNCTION prune_receipts_v1(
    p_keep_ms bigint, p_limit integer, p_now timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_gone bigint;
BEGIN
    DELETE FROM receipt r WHERE r.ctid = ANY (ARRAY(
        SELECT k.ctid FROM receipt k
        WHERE k.created_at < coalesce(p_now, clock_timestamp()) - p_keep_ms * interval '1 ms'
          AND k.operation = 'renew'
        ORDER BY k.created_at LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_gone = ROW_COUNT;
    RETURN v_gone;
END $$;
