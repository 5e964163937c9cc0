-- Lock live tasks where they are, ready row or lease, and settle what is over by then: leases that
-- ran out (OP-23), tasks that waited past a deadline. Returns the instant by which the batch is
-- judged, and the tasks that are live and held; any other is settled, or no task at all.
-- A task may move from one place to the other between two looks. Then every lock is given back and
-- the looking begins anew, since to wait for a ready row while holding a lease is against the order
-- of locks. Nothing keeps a task moving for long: the bound only ends a search in a broken store.
-- A lone task is waited for; of several, what another transaction holds is only named in `busy`.
CREATE OR REPLACE FUNCTION lock_tasks_v1(
    p_task uuid[], p_now timestamptz, OUT judged_at timestamptz, OUT live uuid[], OUT busy uuid[]
)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
DECLARE
    v_tasks uuid[] := ARRAY(SELECT DISTINCT u.id FROM unnest(p_task) AS u (id) ORDER BY u.id);
    v_waits boolean := cardinality(p_task) = 1;
    v_held uuid[];
    v_busy uuid[];
    v_late uuid[];
BEGIN
    FOR v_round IN 1 .. 100 LOOP
        BEGIN
            IF v_waits THEN
                PERFORM 1 FROM ready r WHERE r.task_id = ANY (v_tasks)
                    ORDER BY r.task_id FOR UPDATE;
            ELSE
                PERFORM 1 FROM ready r WHERE r.task_id = ANY (v_tasks)
                    ORDER BY r.task_id FOR UPDATE SKIP LOCKED;
            END IF;
            v_held := ARRAY(SELECT l.attempt_id FROM lease l WHERE l.task_id = ANY (v_tasks));
            SELECT k.judged_at, k.busy INTO judged_at, v_busy
                FROM lock_leases_v1(v_held, p_now, v_waits) k;
            -- What waits now was locked above, or has come back from its lease: by the lapse just
            -- now, or by somebody else, who is not waited for here.
            live := ARRAY(SELECT k.task_id FROM (
                SELECT r.task_id FROM ready r WHERE r.task_id = ANY (v_tasks)
                ORDER BY r.task_id FOR UPDATE SKIP LOCKED) k);
            v_late := ARRAY(SELECT k.task_id FROM (
                SELECT r.task_id, r.expires_at FROM ready r
                WHERE r.task_id = ANY (live) OFFSET 0) k WHERE k.expires_at <= judged_at);
            IF cardinality(v_late) > 0 THEN
                PERFORM settle_ready_v1(v_late,
                    array_fill('FAILED'::text, ARRAY[cardinality(v_late)]),
                    array_fill(NULL::text, ARRAY[cardinality(v_late)]), judged_at);
            END IF;
            live := live || ARRAY(SELECT l.task_id FROM lease l WHERE l.attempt_id = ANY (v_held)
                                  AND l.attempt_id <> ALL (v_busy));
            busy := '{}';
            IF NOT v_waits THEN
                busy := ARRAY(SELECT l.task_id FROM lease l WHERE l.attempt_id = ANY (v_busy)
                              UNION ALL
                              SELECT r.task_id FROM ready r
                              WHERE r.task_id = ANY (v_tasks) AND r.task_id <> ALL (live));
            END IF;
            IF EXISTS (SELECT 1 FROM task t
                       WHERE t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
                         AND t.id <= v_tasks[cardinality(v_tasks)]
                         AND t.state IS NULL AND t.id <> ALL (live || busy)) THEN
                RAISE EXCEPTION USING ERRCODE = 'OR001';
            END IF;
            RETURN;
        EXCEPTION WHEN SQLSTATE 'OR001' THEN
            live := '{}';
        END;
    END LOOP;
    RAISE EXCEPTION 'a task that is not settled is in no place';
END $$;
