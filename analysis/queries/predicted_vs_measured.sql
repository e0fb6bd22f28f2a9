-- How far are the predictions from the measured times, by kind of op?
-- ?1 id of the measured run. Columns: kind, phase, compared ops, predicted and measured sums in ms, error of the sums and mean absolute error in percent.
SELECT kind, phase, count(*) AS n, sum(predicted_ns) / 1e6 AS predicted_ms, sum(measured_ns) / 1e6 AS measured_ms,
       round(100.0 * (sum(predicted_ns) - sum(measured_ns)) / nullif(sum(measured_ns), 0), 2) AS error_percent,
       round(avg(abs(error_percent)), 2) AS mean_absolute_error_percent
FROM predicted_vs_measured
WHERE exec_run = ?1
GROUP BY kind, phase
ORDER BY measured_ms DESC, kind, phase;
