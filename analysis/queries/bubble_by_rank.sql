-- Where does the time of every rank go?
-- ?1 run id. Columns: rank, stage, the four classes in percent of the step (they add up to 100), bubble and step in ns.
SELECT rank, stage,
       round(100.0 * compute_ns / step_ns, 2) AS compute_percent,
       round(100.0 * exposed_communication_ns / step_ns, 2) AS exposed_communication_percent,
       round(100.0 * bubble_ns / step_ns, 2) AS bubble_percent,
       round(100.0 * other_ns / step_ns, 2) AS other_percent,
       bubble_ns, step_ns
FROM rank_summary
WHERE run_id = ?1
ORDER BY rank;
