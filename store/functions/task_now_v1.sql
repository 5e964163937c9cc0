-- Where a task is now: its settled state, else its lease's state, else WAITING; and its revision.
-- One statement, one snapshot: a task is in exactly one place (INV-11b).
CREATE OR REPLACE FUNCTION task_now_v1(p_task uuid)
RETURNS TABLE (state text, revision bigint)
LANGUAGE sql STABLE ROWS 1 AS $$
    SELECT coalesce(l.state, CASE WHEN r.task_id IS NOT NULL THEN 'WAITING' END, t.state),
           coalesce(l.revision, r.revision, t.revision)
    FROM task t
    LEFT JOIN ready r ON r.task_id = t.id
    LEFT JOIN lease l ON l.task_id = t.id
    WHERE t.id = p_task
$$;
