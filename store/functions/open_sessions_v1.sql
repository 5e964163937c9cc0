-- Accept hellos: bind or check the instance, raise its session epoch, close its former session
-- (the newest hello wins, OP-13) and open the new one. What was assigned to the former one and not
-- started goes back. The leases of the instance are locked once, so a command judged under the old
-- session commits before this or sees it closed (INV-19). Sent again, a hello gets its own session.
-- No capacity counts for more than the credential's quota, whatever is declared (R-116, OP-29).
-- All locks are taken before the first change, each kind in id order.
CREATE OR REPLACE FUNCTION open_sessions_v1(
    p_session uuid[], p_namespace uuid[], p_instance uuid[], p_secret_hash bytea[], p_queue uuid[],
    p_routes text[], p_capacity integer[], p_node uuid[], p_session_max_ms bigint[],
    p_credential text[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (code text, epoch bigint, draining boolean, expires_at timestamptz,
                 server_time timestamptz, capacity integer, superseded_session uuid,
                 superseded_node uuid)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    w worker_instance%ROWTYPE;
    s session%ROWTYPE;
    c credential%ROWTYPE;
    v_unstarted uuid[];
BEGIN
    INSERT INTO worker_instance (id, namespace_id, secret_hash, queue_id, routes, created_at)
        SELECT DISTINCT ON (i.id) i.id, i.namespace_id, i.secret_hash, i.queue_id,
               string_to_array(i.routes, ',')::bigint[], coalesce(p_now, clock_timestamp())
        FROM unnest(p_instance, p_namespace, p_secret_hash, p_queue, p_routes)
             WITH ORDINALITY AS i (id, namespace_id, secret_hash, queue_id, routes, ord)
        ORDER BY i.id, i.ord
        ON CONFLICT DO NOTHING;
    PERFORM 1 FROM worker_instance i WHERE i.id = ANY (p_instance) ORDER BY i.id
        FOR NO KEY UPDATE;
    PERFORM 1 FROM session k WHERE k.id = ANY (ARRAY(
            SELECT o.id FROM session o WHERE o.instance_id = ANY (p_instance) AND o.closed_at IS NULL))
        ORDER BY k.id FOR NO KEY UPDATE;
    -- Nothing is granted to these instances meanwhile: a claim needs the session.
    PERFORM 1 FROM lease l WHERE l.attempt_id = ANY (ARRAY(
            SELECT h.attempt_id FROM lease h WHERE h.instance_id = ANY (p_instance)))
        ORDER BY l.attempt_id FOR NO KEY UPDATE;
    server_time := coalesce(p_now, clock_timestamp());
    FOR i IN 1 .. cardinality(p_session) LOOP
        code := 'ok'; epoch := NULL; draining := NULL; expires_at := NULL; capacity := NULL;
        superseded_session := NULL; superseded_node := NULL;
        SELECT * INTO w FROM worker_instance k WHERE k.id = p_instance[i];
        SELECT * INTO s FROM session k WHERE k.id = p_session[i];
        IF w.namespace_id <> p_namespace[i] OR w.secret_hash <> p_secret_hash[i]
                OR w.queue_id <> p_queue[i]
                OR w.routes <> string_to_array(p_routes[i], ',')::bigint[]
                OR s.instance_id <> w.id THEN
            code := 'instance_conflict';
        ELSIF s.id IS NOT NULL THEN
            code := CASE WHEN s.closed_at IS NULL THEN 'ok' ELSE 'session_superseded' END;
            epoch := s.epoch; draining := w.draining; expires_at := s.expires_at;
            capacity := s.capacity;
        ELSE
            UPDATE session k SET closed_at = server_time, close_reason = 'superseded'
                WHERE k.instance_id = w.id AND k.closed_at IS NULL
                RETURNING k.id, k.node_id INTO superseded_session, superseded_node;
            v_unstarted := ARRAY(SELECT l.attempt_id FROM lease l
                                 WHERE l.instance_id = w.id AND l.state = 'LEASED');
            IF cardinality(v_unstarted) > 0 THEN
                PERFORM lapse_leases_v1(v_unstarted, server_time);
            END IF;
            epoch := w.session_epoch + 1; draining := w.draining;
            SELECT * INTO c FROM credential k WHERE k.key_id = p_credential[i];
            expires_at := least(server_time + p_session_max_ms[i] * interval '1 ms', c.expires_at);
            capacity := least(p_capacity[i], c.capacity_max);
            INSERT INTO session (id, instance_id, namespace_id, node_id, queue_id,
                                 credential_key_id, epoch, declared, capacity, opened_at,
                                 expires_at)
            VALUES (p_session[i], w.id, w.namespace_id, p_node[i], w.queue_id, p_credential[i],
                    epoch, p_capacity[i], capacity, server_time, expires_at);
            UPDATE worker_instance k SET session_epoch = epoch, session_id = p_session[i]
                WHERE k.id = w.id;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;
