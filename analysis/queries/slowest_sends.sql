-- Which messages take longest, and how long did they wait for the other side?
-- ?1 run id. Columns: step, rank, op, name, communicator, bytes, wait for the receiver in us, transfer in us, rate in GB/s. The 20 slowest.
SELECT step, rank, op, name, communicator, bytes, (start_ns - ready_ns) / 1e3 AS wait_us, duration_ns / 1e3 AS transfer_us,
       round(1.0 * bytes / nullif(duration_ns, 0), 3) AS gigabytes_per_second
FROM spans
WHERE run_id = ?1 AND kind = 'send'
ORDER BY duration_ns DESC, rank, op
LIMIT 20;
