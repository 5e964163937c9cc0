-- Make the daily partitions of the history tables from today for p_days days. Bounds are the
-- smallest UUIDv7 of each midnight (UTC), since both tables are keyed by time-ordered ids. Rows
-- that no partition holds go to the default one, so a late run loses nothing; a day that already
-- has rows there is left to it. A new partition needs its table alone, for a moment: everybody
-- queues behind whoever waits for that, so behind a long reader (a dump, a report) this gives up at
-- once, and is called again.
CREATE OR REPLACE FUNCTION ensure_partitions_v1(p_days integer, p_now timestamptz DEFAULT NULL)
RETURNS integer
LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
DECLARE
    v_made integer := 0;
    v_day date;
    v_name text;
    v_low uuid;
    v_high uuid;
    v_table text;
    v_clash boolean;
BEGIN
    PERFORM pg_advisory_xact_lock(20595, 1);
    FOREACH v_table IN ARRAY ARRAY['task', 'attempt'] LOOP
        FOR i IN 0 .. p_days - 1 LOOP
            v_day := (coalesce(p_now, clock_timestamp()) AT TIME ZONE 'UTC')::date + i;
            v_name := v_table || to_char(v_day, '"_p"YYYYMMDD');
            CONTINUE WHEN to_regclass(v_name) IS NOT NULL;
            v_low := uuid_floor_v1(v_day::timestamp AT TIME ZONE 'UTC');
            v_high := uuid_floor_v1((v_day + 1)::timestamp AT TIME ZONE 'UTC');
            EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I WHERE id >= $1 AND id < $2)',
                           v_table || '_default') INTO v_clash USING v_low, v_high;
            CONTINUE WHEN v_clash;
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L) '
                           'WITH (fillfactor = 75, autovacuum_analyze_threshold = 200000, '
                           'autovacuum_vacuum_threshold = 100000, '
                           'autovacuum_vacuum_insert_threshold = 200000)', v_name, v_table, v_low, v_high);
            v_made := v_made + 1;
        END LOOP;
    END LOOP;
    RETURN v_made;
END $$;
