-- Accept hellos: bind or check the instance, raise its session epoch, close its former session
-- (the newest hello wins, OP-13) and open the new one. The leases of a closed session are locked
-- once, so a command judged under the old session commits before this or sees it closed (INV-19).
CREATE OR REPLACE FUNCTION open_sessions_v1(
    p_session uuid[], p_namespace uuid[], p_instance uuid[], p_secret_hash bytea[], p_queue uuid[],
    p_routes text[], p_capacity integer[], p_node uuid[], p_session_max_ms bigint[],
    p_credential text[], p_now timestamptz DEFAULT NULL
) RETURNS TABLE (code text, epoch bigint, draining boolean, expires_at timestamptz,
                 server_time timestamptz, superseded_session uuid, superseded_node uuid)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    w worker_instance%ROWTYPE;
    v_routes bigint[];
BEGIN
    INSERT INTO worker_instance (id, namespace_id, secret_hash, queue_id, routes, created_at)
        SELECT DISTINCT ON (i.id) i.id, i.namespace_id, i.secret_hash, i.queue_id,
               string_to_array(i.routes, ',')::bigint[], coalesce(p_now, clock_timestamp())
        FROM unnest(p_instance, p_namespace, p_secret_hash, p_queue, p_routes)
            AS i (id, namespace_id, secret_hash, queue_id, routes)
        ORDER BY i.id
        ON CONFLICT DO NOTHING;
    PERFORM 1 FROM worker_instance i WHERE i.id = ANY (p_instance) ORDER BY i.id
        FOR NO KEY UPDATE;
    v_now := coalesce(p_now, clock_timestamp());
    FOR i IN 1 .. cardinality(p_session) LOOP
        code := 'ok'; server_time := v_now; superseded_session := NULL; superseded_node := NULL;
        v_routes := string_to_array(p_routes[i], ',')::bigint[];
        SELECT * INTO w FROM worker_instance k WHERE k.id = p_instance[i];
        IF w.namespace_id <> p_namespace[i] OR w.secret_hash <> p_secret_hash[i]
                OR w.queue_id <> p_queue[i] OR w.routes <> v_routes THEN
            code := 'instance_conflict';
            RETURN NEXT;
            CONTINUE;
        END IF;
        UPDATE session s SET closed_at = v_now, close_reason = 'superseded'
            WHERE s.instance_id = w.id AND s.closed_at IS NULL
            RETURNING s.id, s.node_id INTO superseded_session, superseded_node;
        PERFORM 1 FROM lease l WHERE l.instance_id = w.id ORDER BY l.attempt_id
            FOR NO KEY UPDATE;
        epoch := w.session_epoch + 1;
        draining := w.draining;
        SELECT least(v_now + p_session_max_ms[i] * interval '1 ms', c.expires_at)
            INTO expires_at FROM credential c WHERE c.key_id = p_credential[i];
        expires_at := coalesce(expires_at, v_now + p_session_max_ms[i] * interval '1 ms');
        INSERT INTO session (id, instance_id, namespace_id, node_id, queue_id, credential_key_id,
                             epoch, capacity, opened_at, expires_at)
        VALUES (p_session[i], w.id, w.namespace_id, p_node[i], w.queue_id, p_credential[i],
                epoch, p_capacity[i], v_now, expires_at);
        UPDATE worker_instance k SET session_epoch = epoch, session_id = p_session[i]
            WHERE k.id = w.id;
        RETURN NEXT;
    END LOOP;
END $$;
