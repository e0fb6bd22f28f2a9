-- Which single ops take longest?
-- ?1 run id. Columns: step, rank, op, name, segment, layer, stage, lane, duration in us, start in ms. The 20 longest.
SELECT step, rank, op, name, segment, layer, stage, lane, duration_ns / 1e3 AS duration_us, start_ns / 1e6 AS start_ms
FROM spans
WHERE run_id = ?1
ORDER BY duration_ns DESC, rank, op
LIMIT 20;
