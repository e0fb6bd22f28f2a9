-- What does each kind of op cost on each stage?
-- ?1 run id. Columns: kind, phase, segment, stage, count over the ranks that were simulated, least, mean and largest time in us, sum in ms.
SELECT kind, phase, segment, stage, n, min_ns / 1e3 AS min_us, avg_ns / 1e3 AS mean_us, max_ns / 1e3 AS max_us, sum_ns / 1e6 AS sum_ms
FROM op_stats
WHERE run_id = ?1
ORDER BY sum_ns DESC, kind, phase, segment, stage;
