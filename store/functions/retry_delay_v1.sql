-- Delay before the attempt that follows the p_started-th started one: initial × 2^(n−1), at most
-- max; no jitter, so it can be foretold (OP-27).
CREATE OR REPLACE FUNCTION retry_delay_v1(p_initial_ms bigint, p_max_ms bigint, p_started integer)
RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT least(p_initial_ms * 2.0::float8 ^ (p_started - 1), p_max_ms::float8)
           * interval '1 millisecond'
$$;
