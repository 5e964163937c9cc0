-- Lock the leases of a batch in id order, read the clock, settle those that are over. Returns the
-- instant by which the whole batch is judged, so no result depends on when the expiry loop runs
-- (OP-23), and no lease is judged by a clock older than its lock (INV-4). Attempts that have no lease
-- any more are locked where they are: two late reports of one attempt are judged one after the other.
-- A lone command waits for its row. In a batch (not p_waits) what another transaction holds is only
-- named in `busy`, for its command to come again, so that one row that is held costs no other lease.
CREATE OR REPLACE FUNCTION lock_leases_v1(
    p_attempt uuid[], p_now timestamptz, p_waits boolean, OUT judged_at timestamptz,
    OUT busy uuid[]
)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    v_over uuid[];
    v_count bigint;
    v_ids uuid[];
    v_held uuid[];
BEGIN
    busy := '{}';
    IF p_waits THEN
        PERFORM 1 FROM lease l WHERE l.attempt_id = ANY (p_attempt)
            ORDER BY l.attempt_id FOR NO KEY UPDATE;
    ELSE
        PERFORM 1 FROM lease l WHERE l.attempt_id = ANY (p_attempt)
            ORDER BY l.attempt_id FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count < cardinality(p_attempt) THEN
        v_ids := ARRAY(SELECT DISTINCT u.id FROM unnest(p_attempt) AS u (id) ORDER BY u.id);
        IF NOT p_waits THEN
            v_held := ARRAY(SELECT k.attempt_id FROM (
                SELECT l.attempt_id FROM lease l WHERE l.attempt_id = ANY (v_ids)
                ORDER BY l.attempt_id FOR NO KEY UPDATE SKIP LOCKED) k);
            busy := ARRAY(SELECT l.attempt_id FROM lease l
                          WHERE l.attempt_id = ANY (v_ids) AND l.attempt_id <> ALL (v_held));
        END IF;
        -- The bounds prune partitions.
        PERFORM 1 FROM attempt a
            WHERE a.id = ANY (v_ids) AND a.id >= v_ids[1] AND a.id <= v_ids[cardinality(v_ids)]
            ORDER BY a.id FOR NO KEY UPDATE;
    END IF;
    judged_at := coalesce(p_now, clock_timestamp());
    SELECT array_agg(l.attempt_id) INTO v_over FROM lease l
        WHERE l.attempt_id = ANY (p_attempt) AND l.lease_until <= judged_at
          AND l.attempt_id <> ALL (busy);
    IF v_over IS NOT NULL THEN
        PERFORM lapse_leases_v1(v_over, judged_at);
    END IF;
END $$;
