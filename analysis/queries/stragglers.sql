-- Which ranks compute longer than the others?
-- ?1 run id. Columns: rank, stage, work in ms, its excess over the mean in percent, and in standard deviations. Slowest first.
WITH mean AS (
  SELECT avg(work_ns) AS work, sqrt(max(avg(1.0 * work_ns * work_ns) - avg(work_ns) * avg(work_ns), 0)) AS deviation
  FROM rank_summary WHERE run_id = ?1
)
SELECT s.rank, s.stage, s.work_ns / 1e6 AS work_ms, round(100.0 * (s.work_ns - mean.work) / nullif(mean.work, 0), 2) AS excess_percent,
       round((s.work_ns - mean.work) / nullif(mean.deviation, 0), 2) AS z_score
FROM rank_summary s, mean
WHERE s.run_id = ?1
ORDER BY s.work_ns DESC, s.rank;
