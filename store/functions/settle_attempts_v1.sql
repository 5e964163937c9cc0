-- The one writer of an attempt's end. The caller has locked the leases and decided; here the lease
-- goes, the attempt becomes history, the task either waits again or is settled, and the event is
-- appended: all in the caller's transaction (R-140, INV-11b).
-- p_task_state: WAITING puts the task back at p_available; anything else settles it.
CREATE OR REPLACE FUNCTION settle_attempts_v1(
    p_attempt uuid[], p_attempt_state text[], p_task_state text[], p_task_code text[],
    p_available timestamptz[], p_code text[], p_result bytea[], p_message uuid[], p_hash bytea[],
    p_now timestamptz
) RETURNS void
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_tasks uuid[];
    v record;
BEGIN
    -- The bounds let the update below prune partitions when it starts.
    v_tasks := ARRAY(SELECT l.task_id FROM lease l WHERE l.attempt_id = ANY (p_attempt)
                     ORDER BY l.task_id);
    WITH verdict AS MATERIALIZED (
        SELECT * FROM unnest(p_attempt, p_attempt_state, p_task_state, p_task_code, p_available,
                             p_code, p_result, p_message, p_hash)
            AS v (attempt_id, attempt_state, task_state, task_code, available_at, code, result,
                  message_id, hash)
    ), ended AS MATERIALIZED (
        SELECT l.*, v.attempt_state, v.task_state, v.task_code, v.available_at, v.code, v.result,
               v.message_id, v.hash
        FROM verdict v JOIN lease l ON l.attempt_id = v.attempt_id
        WHERE l.attempt_id = ANY (p_attempt)
    ), gone AS (
        DELETE FROM lease l WHERE l.attempt_id = ANY (p_attempt)
    ), history AS (
        INSERT INTO attempt (id, task_id, namespace_id, instance_id, session_id, epoch, state,
            granted_at, started_at, finished_at, lease_until, intent, intent_at,
            acknowledged_at, error_code, result, start_message_id, start_revision,
            start_lease_until, finish_message_id, finish_hash, task_state, task_revision)
        SELECT e.attempt_id, e.task_id, e.namespace_id, e.instance_id, e.session_id, e.epoch,
               e.attempt_state, e.granted_at, e.started_at, p_now, e.lease_until, e.intent,
               e.intent_at,
               -- a report that follows the news of a stop is heard too (OP-68)
               CASE WHEN e.message_id IS NOT NULL AND e.told_at IS NOT NULL
                    THEN coalesce(e.acknowledged_at, p_now) ELSE e.acknowledged_at END,
               e.code, e.result, e.start_message_id, e.start_revision,
               e.start_lease_until, e.message_id, e.hash, e.task_state, e.revision + 1
        FROM ended e
    ), waiting AS (
        INSERT INTO ready (task_id, namespace_id, queue_id, route_id, gate_id, priority,
            available_at, expires_at, start_deadline_at, deadline_at, epoch, attempt_count,
            lapses, revision, recovery_safety, max_attempts, initial_delay_ms, max_delay_ms,
            attempt_timeout_ms)
        SELECT e.task_id, e.namespace_id, e.queue_id, e.route_id, e.gate_id, e.priority,
               e.available_at, least(d.start_deadline_at, e.deadline_at), d.start_deadline_at,
               e.deadline_at, e.epoch,
               CASE WHEN e.started_at IS NULL THEN e.attempt_count - 1 ELSE e.attempt_count END,
               CASE WHEN e.started_at IS NULL THEN least(e.lapses + 1, 1000) ELSE 0 END,
               e.revision + 1, e.recovery_safety, e.max_attempts, e.initial_delay_ms,
               e.max_delay_ms, e.attempt_timeout_ms
        FROM ended e
        CROSS JOIN LATERAL (SELECT CASE WHEN e.started_at IS NULL THEN e.start_deadline_at END
                                       AS start_deadline_at) d
        WHERE e.task_state = 'WAITING'
    ), settled AS (
        UPDATE task t SET state = e.task_state, revision = e.revision + 1,
               attempt_count = CASE WHEN e.started_at IS NULL THEN e.attempt_count - 1
                                    ELSE e.attempt_count END,
               error_code = e.task_code, attempt_id = e.attempt_id, epoch = e.epoch,
               cancel_requested_at = CASE WHEN e.intent = 'caller' THEN e.intent_at END,
               cancel_reason = CASE WHEN e.intent = 'caller' THEN e.intent_reason END,
               completed_at = CASE WHEN e.task_state <> 'NEEDS_REVIEW' THEN p_now END
        FROM ended e
        WHERE t.id = e.task_id AND t.state IS NULL AND e.task_state <> 'WAITING'
          AND t.id = ANY (v_tasks) AND t.id >= v_tasks[1]
          AND t.id <= v_tasks[cardinality(v_tasks)]
        RETURNING 1
    ), told AS (
        INSERT INTO event (namespace_id, resource_type, resource_id, revision, type, attempt_id,
                           occurred_at)
        SELECT e.namespace_id, 'task', e.task_id, e.revision + 1, 'task.' || lower(e.task_state),
               e.attempt_id, p_now
        FROM ended e
    )
    SELECT (SELECT count(*) FROM ended) AS ended,
           (SELECT count(*) FROM ended WHERE task_state <> 'WAITING') AS last,
           (SELECT count(*) FROM settled) AS settled
    INTO v;
    -- Neither can be while the caller holds the locks. In a store that was damaged one bad row must
    -- not keep all others from their end, so it is only said (INV-5, INV-39).
    IF v.ended <> cardinality(p_attempt) OR v.settled <> v.last THEN
        RAISE WARNING 'of % attempts to settle % had a lease; % tasks of % were settled',
            cardinality(p_attempt), v.ended, v.settled, v.last;
    END IF;
END $$;
