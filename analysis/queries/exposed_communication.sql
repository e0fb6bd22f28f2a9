-- Which ranks pay for communication that no computation hides, and what do they transfer?
-- ?1 run id. Columns: rank, stage, exposed time in us and in percent of the step, all transfer time in us, bytes. Worst first.
SELECT s.rank, s.stage, s.exposed_communication_ns / 1e3 AS exposed_us,
       round(100.0 * s.exposed_communication_ns / s.step_ns, 2) AS exposed_percent,
       c.transfer_us, c.bytes
FROM rank_summary s
LEFT JOIN (SELECT rank, sum(transfer_ns) / 1e3 AS transfer_us, sum(bytes) AS bytes FROM comm_summary WHERE run_id = ?1 GROUP BY rank) c
  ON c.rank = s.rank
WHERE s.run_id = ?1
ORDER BY s.exposed_communication_ns DESC, s.rank;
