-- A proven command that cannot be applied: a repeat gets its original receipt, anything else is
-- kept as evidence and answered once and for ever with EVIDENCE_ONLY (OP-21, OP-22, R-143, R-144).
-- At most 16 evidence rows an attempt, half of them for reports of an end, so that no number of
-- late renewals leaves a late result without room; what comes after is counted on the last one.
CREATE OR REPLACE FUNCTION late_command_v1(
    p_operation text, p_namespace uuid, p_task uuid, p_attempt uuid, p_epoch bigint,
    p_message uuid, p_hash bytea, p_outcome text, p_code text, p_result bytea, p_now timestamptz
) RETURNS command_outcome_v1
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    o command_outcome_v1;
    r receipt%ROWTYPE;
    a record;
    v_kept bigint;
    v_last bigint;
BEGIN
    o.code := 'attempt_not_found'; o.server_time := p_now; o.settled := true;
    SELECT * INTO a FROM (
        SELECT k.task_id, k.namespace_id, k.epoch, k.state, k.lease_until, k.start_message_id,
               k.start_revision, k.start_lease_until, k.finish_message_id, k.finish_hash,
               k.task_state, k.task_revision, true AS settled
        FROM attempt k WHERE k.id = p_attempt
        UNION ALL
        SELECT l.task_id, l.namespace_id, l.epoch, l.state, l.lease_until, l.start_message_id,
               l.start_revision, l.start_lease_until, NULL, NULL, l.state, l.revision, false
        FROM lease l WHERE l.attempt_id = p_attempt) both_places LIMIT 1;
    IF a.task_id IS DISTINCT FROM p_task OR a.namespace_id IS DISTINCT FROM p_namespace
            OR a.epoch IS DISTINCT FROM p_epoch THEN
        RETURN o;
    END IF;
    o.code := 'ok'; o.active := false; o.lease_state := a.state; o.lease_until := a.lease_until;
    o.settled := a.settled; o.deduplicated := true; o.disposition := 'APPLIED';
    IF NOT a.settled THEN
        -- It is told to stop; heard from again after that, it has been told (OP-68).
        UPDATE lease l SET acknowledged_at = CASE WHEN l.told_at IS NOT NULL THEN p_now END,
                           told_at = coalesce(l.told_at, p_now)
            WHERE l.attempt_id = p_attempt AND l.intent IS NOT NULL
              AND l.acknowledged_at IS NULL;
    END IF;

    IF p_operation = 'start' AND a.start_message_id = p_message THEN
        o.task_state := 'RUNNING'; o.attempt_state := 'RUNNING';
        o.task_revision := a.start_revision; o.receipt_lease_until := a.start_lease_until;
        RETURN o;
    ELSIF p_operation = 'finish' AND a.finish_hash = p_hash THEN
        o.task_state := a.task_state; o.attempt_state := a.state;
        o.task_revision := a.task_revision; o.receipt_lease_until := a.lease_until;
        RETURN o;
    ELSIF p_operation = 'finish' AND a.finish_message_id = p_message THEN
        o.code := 'operation_conflict';
        RETURN o;
    END IF;
    SELECT * INTO r FROM receipt k WHERE k.attempt_id = p_attempt
        AND k.operation = p_operation AND k.message_id = p_message;
    IF FOUND THEN
        IF r.hash IS DISTINCT FROM p_hash THEN
            o.code := 'operation_conflict';
            RETURN o;
        END IF;
        o.task_state := r.task_state; o.attempt_state := r.attempt_state;
        o.task_revision := r.task_revision; o.receipt_lease_until := r.lease_until;
        o.disposition := r.disposition;
        RETURN o;
    END IF;

    SELECT n.state, n.revision INTO o.task_state, o.task_revision FROM task_now_v1(p_task) n;
    o.attempt_state := a.state; o.receipt_lease_until := a.lease_until;
    o.disposition := 'EVIDENCE_ONLY'; o.deduplicated := false;
    SELECT count(*), max(e.id) INTO v_kept, v_last FROM evidence e WHERE e.attempt_id = p_attempt;
    IF v_kept < (CASE p_operation WHEN 'finish' THEN 16 ELSE 8 END) THEN
        INSERT INTO evidence (attempt_id, task_id, operation, message_id, outcome, error_code,
                              result, received_at)
        VALUES (p_attempt, p_task, p_operation, p_message, p_outcome, p_code, p_result, p_now);
    ELSE
        UPDATE evidence e SET further = e.further + 1 WHERE e.id = v_last;
    END IF;
    INSERT INTO receipt VALUES (p_attempt, p_operation, p_message, p_hash, o.task_state,
        o.attempt_state, o.task_revision, o.receipt_lease_until, o.disposition, p_now)
        ON CONFLICT DO NOTHING;
    RETURN o;
END $$;
