-- Why did the run not end well, in its own words?
-- ?1 run id. Columns: level, code, rank, op, and for an out-of-memory the bytes asked for, in use and available; text. In order.
SELECT level, code, rank, op, requested_bytes, in_use_bytes, capacity_bytes, text
FROM diagnostics
WHERE run_id = ?1
ORDER BY seq;
