-- Whether an instance, proven by its secret, is the one that holds or held this attempt. Unknown,
-- foreign and unproven are one answer (INV-21). Read in the transaction that acts on it (INV-3).
CREATE OR REPLACE FUNCTION holds_attempt_v1(
    p_namespace uuid, p_instance uuid, p_secret_hash bytea, p_attempt uuid
) RETURNS boolean
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
BEGIN
    RETURN EXISTS (SELECT 1 FROM worker_instance w WHERE w.id = p_instance
                   AND w.namespace_id = p_namespace AND w.secret_hash = p_secret_hash)
       AND (EXISTS (SELECT 1 FROM lease l WHERE l.attempt_id = p_attempt
                    AND l.instance_id = p_instance AND l.namespace_id = p_namespace)
            OR EXISTS (SELECT 1 FROM attempt a WHERE a.id = p_attempt
                       AND a.instance_id = p_instance AND a.namespace_id = p_namespace));
END $$;
