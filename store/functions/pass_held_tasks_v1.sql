-- Lock the rows of tasks that are about to be settled, and leave out those that another transaction
-- holds: for sweeps, which one held row must not stop (INV-39).
CREATE OR REPLACE FUNCTION pass_held_tasks_v1(p_task uuid[]) RETURNS uuid[]
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_tasks uuid[] := ARRAY(SELECT u.id FROM unnest(p_task) AS u (id) ORDER BY u.id);
    v_locked uuid[];
    v_held uuid[];
BEGIN
    -- The bounds prune partitions.
    v_locked := ARRAY(SELECT k.id FROM (
        SELECT t.id FROM task t
        WHERE t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
          AND t.id <= v_tasks[cardinality(v_tasks)]
        ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED) k);
    IF cardinality(v_locked) = cardinality(v_tasks) THEN
        RETURN v_tasks;
    END IF;
    v_held := ARRAY(SELECT t.id FROM task t
                    WHERE t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
                      AND t.id <= v_tasks[cardinality(v_tasks)] AND t.id <> ALL (v_locked));
    RETURN ARRAY(SELECT u.id FROM unnest(v_tasks) AS u (id) WHERE u.id <> ALL (v_held));
END $$;
