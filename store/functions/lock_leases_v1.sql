-- Lock the leases of a batch in id order, read the clock, settle those that are over. Returns the
-- instant by which the whole batch is judged, so no result depends on when the expiry loop runs
-- (OP-23), and no lease is judged by a clock older than its lock (INV-4). Attempts that have no lease
-- any more are locked where they are: two late reports of one attempt are judged one after the other.
CREATE OR REPLACE FUNCTION lock_leases_v1(p_attempt uuid[], p_now timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_now timestamptz;
    v_over uuid[];
    v_held bigint;
    v_sorted uuid[];
BEGIN
    PERFORM 1 FROM lease l WHERE l.attempt_id = ANY (p_attempt)
        ORDER BY l.attempt_id FOR NO KEY UPDATE;
    GET DIAGNOSTICS v_held = ROW_COUNT;
    IF v_held < cardinality(p_attempt) THEN
        -- The bounds prune partitions.
        v_sorted := ARRAY(SELECT u.id FROM unnest(p_attempt) AS u (id) ORDER BY u.id);
        PERFORM 1 FROM attempt a
            WHERE a.id = ANY (v_sorted) AND a.id >= v_sorted[1]
              AND a.id <= v_sorted[cardinality(v_sorted)]
            ORDER BY a.id FOR NO KEY UPDATE;
    END IF;
    v_now := coalesce(p_now, clock_timestamp());
    SELECT array_agg(l.attempt_id) INTO v_over FROM lease l
        WHERE l.attempt_id = ANY (p_attempt) AND l.lease_until <= v_now;
    IF v_over IS NOT NULL THEN
        PERFORM lapse_leases_v1(v_over, v_now);
    END IF;
    RETURN v_now;
END $$;
