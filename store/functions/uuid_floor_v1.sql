-- The smallest UUIDv7 of an instant (RFC 9562 section 5.7: 48 bits of Unix milliseconds first).
CREATE OR REPLACE FUNCTION uuid_floor_v1(p_at timestamptz) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM p_at) * 1000)::bigint), 12, '0')
            || '00000000000000000000')::uuid
$$;
