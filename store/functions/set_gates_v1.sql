-- Pause or resume queues (R-087, OP-31). The gate is taken exclusively: whoever may still claim or
-- start has committed before, and nobody commits a claim or a start after a committed pause
-- (INV-18). A stale control version changes nothing; a repeat gets its first answer.
-- Codes: done · state_conflict · queue_not_found · idempotency_conflict.
CREATE OR REPLACE FUNCTION set_gates_v1(
    p_namespace uuid[], p_queue uuid[], p_key text[], p_hash bytea[], p_expected bigint[],
    p_paused boolean[], p_reason text[], p_actor text[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (code text, paused boolean, control_version bigint, deduplicated boolean)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_gate bigint;
    v_operation text;
    g gate%ROWTYPE;
    s submission%ROWTYPE;
BEGIN
    PERFORM pg_advisory_xact_lock(20594, k.gate_id::integer)
        FROM (SELECT DISTINCT q.gate_id FROM queue q WHERE q.id = ANY (p_queue)
              ORDER BY q.gate_id) k;
    v_now := coalesce(p_now, clock_timestamp());
    FOR i IN 1 .. cardinality(p_queue) LOOP
        code := 'done'; paused := NULL; control_version := NULL; deduplicated := false;
        v_operation := CASE WHEN p_paused[i] THEN 'queue.pause' ELSE 'queue.resume' END;
        SELECT q.gate_id INTO v_gate FROM queue q
            WHERE q.id = p_queue[i] AND q.namespace_id = p_namespace[i];
        SELECT * INTO g FROM gate k WHERE k.id = v_gate;
        SELECT * INTO s FROM submission k
            WHERE k.namespace_id = p_namespace[i] AND k.operation = v_operation
              AND k.key = p_key[i] AND k.scope = p_queue[i];
        IF g.id IS NULL THEN
            code := 'queue_not_found';
        ELSIF s.hash <> p_hash[i] THEN
            code := 'idempotency_conflict';
        ELSIF s.hash IS NOT NULL THEN
            code := s.code; paused := s.state = 'PAUSED'; control_version := s.revision;
            deduplicated := true;
        ELSIF g.control_version <> p_expected[i] THEN
            code := 'state_conflict'; paused := g.paused; control_version := g.control_version;
        ELSE
            paused := p_paused[i]; control_version := g.control_version + 1;
            UPDATE gate k SET paused = p_paused[i], control_version = g.control_version + 1,
                              reason = p_reason[i], updated_at = v_now
                WHERE k.id = g.id AND k.control_version = g.control_version;
            INSERT INTO event (namespace_id, resource_type, resource_id, revision, type,
                               occurred_at)
                VALUES (p_namespace[i], 'queue', p_queue[i], control_version,
                        CASE WHEN p_paused[i] THEN 'queue.paused' ELSE 'queue.resumed' END,
                        v_now);
            PERFORM keep_operations_v1(v_operation, ARRAY[p_namespace[i]], ARRAY[p_queue[i]],
                ARRAY[p_key[i]], ARRAY[p_hash[i]], ARRAY['done'],
                ARRAY[CASE WHEN p_paused[i] THEN 'PAUSED' ELSE 'OPEN' END],
                ARRAY[control_version], ARRAY[p_actor[i]], ARRAY[p_reason[i]],
                ARRAY[NULL::bytea], v_now);
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
