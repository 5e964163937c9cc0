-- Bind the key of each operation to what it did (R-087, R-094, INV-31), and write down who wanted it
-- and why. Its transaction is the operation's own: a key is never bound to what did not happen.
CREATE OR REPLACE FUNCTION keep_operations_v1(
    p_operation text, p_namespace uuid[], p_resource uuid[], p_key text[], p_hash bytea[],
    p_code text[], p_state text[], p_revision bigint[], p_actor text[], p_reason text[],
    p_evidence bytea[], p_now timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    WITH kept AS (
        SELECT * FROM unnest(p_namespace, p_resource, p_key, p_hash, p_code, p_state, p_revision,
                             p_actor, p_reason, p_evidence)
            AS k (namespace_id, resource, key, hash, code, state, revision, actor, reason,
                  evidence)
    ), bound AS (
        INSERT INTO submission (namespace_id, operation, key, scope, hash, resource_id,
                                created_at, code, state, revision)
        SELECT k.namespace_id, p_operation, k.key, k.resource, k.hash, k.resource, p_now, k.code,
               k.state, k.revision
        FROM kept k
    )
    INSERT INTO audit (namespace_id, actor, action, resource, reason, evidence, occurred_at)
    SELECT k.namespace_id, k.actor, p_operation, replace(k.resource::text, '-', ''), k.reason,
           k.evidence, p_now
    FROM kept k;
END $$;
