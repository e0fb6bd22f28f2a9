-- Which runs does this database hold?
-- No parameter. Columns: id, uid, scenario, kind, schedule order, status, ranks, step in ms, bubble in percent, peak in GiB, label, start.
SELECT id, uid, scenario, kind, schedule_order, status, ranks, step_time_ns / 1e6 AS step_ms, round(100 * bubble_fraction, 2) AS bubble_percent,
       round(peak_allocated_bytes / 1073741824.0, 3) AS peak_gib, label, started_utc
FROM runs
ORDER BY id;
