-- Take the gates over a batch in shared mode until the transaction ends, in id order. Pausing takes
-- one exclusively, so no claim or start commits after a committed pause (INV-18).
CREATE OR REPLACE FUNCTION lock_gates_v1(p_gate bigint[]) RETURNS void
LANGUAGE sql AS $$
    SELECT pg_advisory_xact_lock_shared(20594, g.id::integer)
    FROM (SELECT DISTINCT id FROM unnest(p_gate) AS u (id) ORDER BY id) g
$$;
