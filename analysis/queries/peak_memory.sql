-- How high does memory rise on every rank, when, at which op, and what fills it?
-- ?1 run id. Columns: rank, space, curve, peak in GiB and bytes, instant in ms, op and its name, the three largest categories.
SELECT p.rank, p.space, p.curve, round(p.bytes / 1073741824.0, 3) AS peak_gib, p.bytes, p.at_ns / 1e6 AS at_ms, p.op, p.op_name,
       (SELECT group_concat(category || ' ' || round(bytes / 1073741824.0, 3), ', ')
        FROM (SELECT category, bytes FROM memory_peak_category c
              WHERE c.run_id = p.run_id AND c.rank = p.rank AND c.space = p.space AND c.curve = p.curve
              ORDER BY bytes DESC LIMIT 3)) AS largest_gib
FROM memory_peak p
WHERE p.run_id = ?1 AND p.bytes > 0
ORDER BY p.rank, p.space, p.curve;
