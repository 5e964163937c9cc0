-- Overwrite declared capacities by sequence (R-023, R-156, OP-29). An equal sequence with an equal
-- body is confirmed again; older or contradicting ones change nothing. Drain sticks to the instance.
-- No capacity counts for more than the credential's quota, whatever is declared (R-116).
CREATE OR REPLACE FUNCTION set_capacity_v1(
    p_session uuid[], p_sequence text[], p_capacity integer[], p_drain boolean[],
    p_now timestamptz DEFAULT NULL
) RETURNS TABLE (code text, draining boolean, epoch bigint, expires_at timestamptz,
                 server_time timestamptz, capacity integer)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    s session%ROWTYPE;
    v_sequence numeric(20, 0);
BEGIN
    PERFORM 1 FROM worker_instance i
        WHERE i.id = ANY (ARRAY(SELECT k.instance_id FROM session k WHERE k.id = ANY (p_session)))
        ORDER BY i.id FOR NO KEY UPDATE;
    PERFORM 1 FROM session k WHERE k.id = ANY (p_session) ORDER BY k.id FOR NO KEY UPDATE;
    server_time := coalesce(p_now, clock_timestamp());
    FOR i IN 1 .. cardinality(p_session) LOOP
        v_sequence := p_sequence[i]::numeric(20, 0);
        SELECT * INTO s FROM session k WHERE k.id = p_session[i];
        SELECT w.draining INTO draining FROM worker_instance w WHERE w.id = s.instance_id;
        epoch := s.epoch; expires_at := s.expires_at; capacity := s.capacity; code := 'ok';
        IF s.id IS NULL OR s.closed_at IS NOT NULL THEN
            code := 'session_superseded';
        ELSIF s.expires_at <= server_time THEN
            code := 'session_expired';
        ELSIF v_sequence > s.sequence THEN
            UPDATE session k SET declared = p_capacity[i], sequence = v_sequence,
                   drain = p_drain[i], capacity = least(p_capacity[i], (
                       SELECT c.capacity_max FROM credential c
                       WHERE c.key_id = k.credential_key_id))
                WHERE k.id = s.id RETURNING k.capacity INTO capacity;
            IF p_drain[i] AND NOT draining THEN
                UPDATE worker_instance w SET draining = true WHERE w.id = s.instance_id;
                draining := true;
            END IF;
        ELSIF v_sequence < s.sequence OR s.declared <> p_capacity[i] OR s.drain <> p_drain[i] THEN
            code := 'stale_sequence';
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
