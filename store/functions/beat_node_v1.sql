-- A node says that it lives. False when the cluster had given it up (or never knew it): then its
-- sessions were closed, and it must send its workers elsewhere.
CREATE OR REPLACE FUNCTION beat_node_v1(
    p_node uuid, p_kind text, p_draining boolean, p_now timestamptz DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
    UPDATE node SET beat_at = v_now, draining = p_draining WHERE id = p_node;
    IF FOUND THEN
        RETURN true;
    END IF;
    INSERT INTO node (id, kind, draining, started_at, beat_at)
        VALUES (p_node, p_kind, p_draining, v_now, v_now) ON CONFLICT DO NOTHING;
    RETURN false;
END $$;
