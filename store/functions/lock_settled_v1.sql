-- Lock the settled ones of these tasks, in id order, and return them: what only a person may move.
-- A live task is left alone, since its row belongs to whoever holds its ready row or lease.
CREATE OR REPLACE FUNCTION lock_settled_v1(p_task uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_tasks uuid[] := ARRAY(SELECT DISTINCT u.id FROM unnest(p_task) AS u (id) ORDER BY u.id);
BEGIN
    RETURN ARRAY(SELECT k.id FROM (
        SELECT t.id FROM task t
        WHERE t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
          AND t.id <= v_tasks[cardinality(v_tasks)] AND t.state IS NOT NULL
        ORDER BY t.id FOR NO KEY UPDATE) k);
END $$;
