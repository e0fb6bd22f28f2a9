-- The schema of a steptwin database, version 2. traces/SCHEMA.md describes it. Times are integer nanoseconds on the run's clock,
-- sizes integer bytes. The views at the end are the public face; the tables above may change between versions.
PRAGMA application_id = 1398036302;  -- 0x5354574E, "STWN"
PRAGMA user_version = 2;

CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE string(id INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE) STRICT;  -- interned names

CREATE TABLE scenario(
  id INTEGER PRIMARY KEY,
  sha256 TEXT NOT NULL,      -- of the canonical resolved JSON; empty when the run had none (a schedule text)
  name TEXT NOT NULL, path TEXT NOT NULL,
  json TEXT NOT NULL CHECK(json = '' OR json_valid(json)),
  UNIQUE(sha256, name, path)
) STRICT;

-- What every rank issues, once per digest.
CREATE TABLE schedule(
  id INTEGER PRIMARY KEY,
  digest TEXT NOT NULL UNIQUE,
  ranks INTEGER NOT NULL, ops INTEGER NOT NULL,
  mesh TEXT NOT NULL CHECK(json_valid(mesh))        -- [["pp",4],["dp",1]], slowest axis first
) STRICT;
CREATE TABLE program(
  schedule_id INTEGER NOT NULL REFERENCES schedule(id) ON DELETE CASCADE, program INTEGER NOT NULL,
  name TEXT NOT NULL, stage INTEGER,                -- of its first chunk
  stages TEXT NOT NULL CHECK(json_valid(stages)),   -- [stage of chunk 0, ...]
  first_op INTEGER NOT NULL, ops INTEGER NOT NULL,
  PRIMARY KEY(schedule_id, program)
) STRICT, WITHOUT ROWID;
CREATE TABLE schedule_rank(
  schedule_id INTEGER NOT NULL REFERENCES schedule(id) ON DELETE CASCADE, rank INTEGER NOT NULL,
  program INTEGER,                                  -- NULL: issues nothing
  coordinates TEXT NOT NULL,                        -- "pp1 dp0"
  PRIMARY KEY(schedule_id, rank)
) STRICT, WITHOUT ROWID;
CREATE TABLE lane(
  schedule_id INTEGER NOT NULL REFERENCES schedule(id) ON DELETE CASCADE, program INTEGER NOT NULL, lane INTEGER NOT NULL,
  name TEXT NOT NULL, engine TEXT NOT NULL,
  PRIMARY KEY(schedule_id, program, lane)
) STRICT, WITHOUT ROWID;
CREATE TABLE communicator(
  schedule_id INTEGER NOT NULL REFERENCES schedule(id) ON DELETE CASCADE, comm INTEGER NOT NULL, name TEXT NOT NULL,
  axes TEXT NOT NULL CHECK(json_valid(axes)),       -- [indices into mesh]
  groups TEXT NOT NULL CHECK(json_valid(groups)),   -- [[positions], ...]; [] = one group of all
  PRIMARY KEY(schedule_id, comm)
) STRICT, WITHOUT ROWID;
CREATE TABLE op(                                    -- no REFERENCES: a bulk table, removed with its schedule by the tool
  schedule_id INTEGER NOT NULL, op INTEGER NOT NULL,             -- dense over the schedule, program after program, in issue order
  program INTEGER NOT NULL, lane INTEGER,                        -- lane NULL: host wait
  kind INTEGER NOT NULL, phase INTEGER NOT NULL, name INTEGER NOT NULL, segment INTEGER NOT NULL,  -- string.id
  stage INTEGER, chunk INTEGER, micro_batch INTEGER, layer INTEGER, slice INTEGER,
  bytes INTEGER NOT NULL, flops INTEGER NOT NULL,
  comm INTEGER, peer INTEGER, peer_relative INTEGER,             -- member sent to, received from, or root; relative = offset on the ring
  group_no INTEGER, guarded INTEGER NOT NULL,
  target INTEGER,                                                -- host wait: the op waited for
  PRIMARY KEY(schedule_id, op)
) STRICT, WITHOUT ROWID;

CREATE TABLE run(
  id INTEGER PRIMARY KEY,
  uid TEXT NOT NULL UNIQUE,                         -- 16 hex digits
  scenario_id INTEGER NOT NULL REFERENCES scenario(id),
  schedule_id INTEGER REFERENCES schedule(id),      -- NULL until the run is finished
  kind TEXT NOT NULL CHECK(kind IN('sim','exec','import')),
  status TEXT NOT NULL CHECK(status IN('running','ok','oom','deadlock','error','interrupted')),
  status_text TEXT NOT NULL DEFAULT '',
  backend TEXT NOT NULL, engine TEXT NOT NULL DEFAULT '', schedule_order TEXT NOT NULL,
  sim_of_uid TEXT, label TEXT,                      -- sim_of_uid: exec -> the prediction it belongs to
  seed INTEGER NOT NULL, steps INTEGER NOT NULL,
  guard_value INTEGER NOT NULL DEFAULT 1,           -- the branch guarded ops took; runs that differ are not compared
  approximate_fold INTEGER NOT NULL DEFAULT 0,
  overrides TEXT NOT NULL CHECK(json_valid(overrides)), argv TEXT NOT NULL CHECK(json_valid(argv)),
  machine TEXT NOT NULL CHECK(json_valid(machine)), cost_model TEXT NOT NULL,
  started_utc TEXT NOT NULL, started_unix_ns INTEGER NOT NULL, finished_unix_ns INTEGER,
  step_time_ns INTEGER, makespan_ns INTEGER, largest_rank_span_ns INTEGER,
  ops INTEGER,                                      -- op instances that ran
  trace_digest TEXT,
  tool_version TEXT NOT NULL, git_sha TEXT NOT NULL, git_dirty INTEGER NOT NULL CHECK(git_dirty IN(0,1)),
  host TEXT NOT NULL, pid INTEGER NOT NULL, process TEXT NOT NULL   -- process: boot id, pid namespace, start time
) STRICT;
CREATE INDEX run_label ON run(label) WHERE label IS NOT NULL;
CREATE INDEX run_sim_of ON run(sim_of_uid) WHERE sim_of_uid IS NOT NULL;

CREATE TABLE rank(                                  -- rank -> the simulated rank that stands for it (itself unless folded)
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, rank INTEGER NOT NULL, stand_in INTEGER NOT NULL,
  PRIMARY KEY(run_id, rank)
) STRICT, WITHOUT ROWID;
CREATE TABLE breakdown(                             -- of stand-ins; the four classes add up to step_ns
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, rank INTEGER NOT NULL,
  compute_ns INTEGER NOT NULL, exposed_communication_ns INTEGER NOT NULL, bubble_ns INTEGER NOT NULL, other_ns INTEGER NOT NULL,
  work_ns INTEGER NOT NULL, rank_span_ns INTEGER NOT NULL,
  PRIMARY KEY(run_id, rank)
) STRICT, WITHOUT ROWID;
-- The bulk tables: keyed in the order in which they are written, so that appending is cheap; no other index.
CREATE TABLE span(
  run_id INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL, op INTEGER NOT NULL,
  issue_ns INTEGER NOT NULL, ready_ns INTEGER NOT NULL, start_ns INTEGER NOT NULL, end_ns INTEGER NOT NULL,
  PRIMARY KEY(run_id, rank, step, op)
) STRICT, WITHOUT ROWID;
CREATE TABLE memory_sample(
  run_id INTEGER NOT NULL, rank INTEGER NOT NULL, seq INTEGER NOT NULL,
  space INTEGER NOT NULL, curve INTEGER NOT NULL, category INTEGER NOT NULL,   -- string.id; category "total": the sum
  at_ns INTEGER NOT NULL, bytes INTEGER NOT NULL,
  PRIMARY KEY(run_id, rank, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE peak(                                  -- of stand-ins
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, rank INTEGER NOT NULL,
  space TEXT NOT NULL, curve TEXT NOT NULL, bytes INTEGER NOT NULL, at_ns INTEGER NOT NULL, op INTEGER,
  PRIMARY KEY(run_id, rank, space, curve)
) STRICT, WITHOUT ROWID;
CREATE TABLE peak_category(
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, rank INTEGER NOT NULL,
  space TEXT NOT NULL, curve TEXT NOT NULL, category TEXT NOT NULL, bytes INTEGER NOT NULL,
  PRIMARY KEY(run_id, rank, space, curve, category)
) STRICT, WITHOUT ROWID;
CREATE TABLE metric(
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, name TEXT NOT NULL, rank INTEGER NOT NULL DEFAULT -1,  -- -1: the run
  unit TEXT NOT NULL, value REAL NOT NULL,
  PRIMARY KEY(run_id, name, rank)
) STRICT, WITHOUT ROWID;
CREATE TABLE diag(
  run_id INTEGER NOT NULL REFERENCES run(id) ON DELETE CASCADE, seq INTEGER NOT NULL,
  level TEXT NOT NULL CHECK(level IN('error','warning','detail')), code TEXT NOT NULL,
  rank INTEGER, op INTEGER, requested_bytes INTEGER, capacity_bytes INTEGER, in_use_bytes INTEGER, text TEXT NOT NULL,
  PRIMARY KEY(run_id, seq)
) STRICT, WITHOUT ROWID;

CREATE VIEW runs AS
  SELECT r.id, r.uid, r.kind, s.name AS scenario, r.status, c.digest AS schedule_digest, r.trace_digest, r.step_time_ns, r.sim_of_uid,
         r.schedule_order, r.backend, r.engine, c.ranks, r.ops, r.steps, r.makespan_ns, r.largest_rank_span_ns,
         (SELECT value FROM metric m WHERE m.run_id = r.id AND m.name = 'bubble_fraction' AND m.rank = -1) AS bubble_fraction,
         CAST((SELECT value FROM metric m WHERE m.run_id = r.id AND m.name = 'peak_allocated_bytes' AND m.rank = -1) AS INTEGER)
           AS peak_allocated_bytes,
         r.label, r.cost_model, r.seed, r.approximate_fold, r.started_utc, r.finished_unix_ns - r.started_unix_ns AS wall_ns,
         r.status_text, s.path AS scenario_path, s.sha256 AS scenario_sha256, r.overrides, r.argv, r.tool_version, r.git_sha, r.git_dirty, r.host
  FROM run r JOIN scenario s ON s.id = r.scenario_id LEFT JOIN schedule c ON c.id = r.schedule_id;

CREATE VIEW ops AS
  SELECT o.schedule_id, c.digest AS schedule_digest, o.op, p.name AS program, l.name AS lane, l.engine, k.value AS kind, f.value AS phase,
         n.value AS name, g.value AS segment, o.stage, o.chunk, o.micro_batch, o.layer, o.slice, o.bytes, o.flops, m.name AS communicator,
         o.group_no, o.guarded, o.target
  FROM op o JOIN schedule c ON c.id = o.schedule_id JOIN program p ON p.schedule_id = o.schedule_id AND p.program = o.program
  LEFT JOIN lane l ON l.schedule_id = o.schedule_id AND l.program = o.program AND l.lane = o.lane
  JOIN string k ON k.id = o.kind JOIN string f ON f.id = o.phase JOIN string n ON n.id = o.name JOIN string g ON g.id = o.segment
  LEFT JOIN communicator m ON m.schedule_id = o.schedule_id AND m.comm = o.comm;

CREATE VIEW spans AS
  SELECT t.run_id, t.step, t.rank, coalesce(l.name, 'host') AS lane, t.op, k.value AS kind, f.value AS phase, o.stage, o.chunk, o.micro_batch,
         o.layer, o.bytes, t.issue_ns, t.ready_ns, t.start_ns, t.end_ns, t.end_ns - t.start_ns AS duration_ns,
         n.value AS name, g.value AS segment, l.engine, m.name AS communicator, o.group_no, o.flops
  FROM span t JOIN run r ON r.id = t.run_id JOIN op o ON o.schedule_id = r.schedule_id AND o.op = t.op
  LEFT JOIN lane l ON l.schedule_id = o.schedule_id AND l.program = o.program AND l.lane = o.lane
  JOIN string k ON k.id = o.kind JOIN string f ON f.id = o.phase JOIN string n ON n.id = o.name JOIN string g ON g.id = o.segment
  LEFT JOIN communicator m ON m.schedule_id = o.schedule_id AND m.comm = o.comm;

CREATE VIEW rank_summary AS
  SELECT k.run_id, k.rank, k.stand_in, p.name AS program, c.coordinates, p.stage, p.stages,
         b.compute_ns, b.exposed_communication_ns, b.bubble_ns, b.other_ns,
         b.compute_ns + b.exposed_communication_ns + b.bubble_ns + b.other_ns AS step_ns,
         1.0 * b.bubble_ns / nullif(b.compute_ns + b.exposed_communication_ns + b.bubble_ns + b.other_ns, 0) AS bubble_fraction,
         b.work_ns, b.rank_span_ns
  FROM rank k JOIN run r ON r.id = k.run_id
  LEFT JOIN schedule_rank c ON c.schedule_id = r.schedule_id AND c.rank = k.rank
  LEFT JOIN program p ON p.schedule_id = r.schedule_id AND p.program = c.program
  LEFT JOIN breakdown b ON b.run_id = k.run_id AND b.rank = k.stand_in;

CREATE VIEW bubble AS
  SELECT run_id, rank, stage, bubble_ns, step_ns, bubble_fraction FROM rank_summary;

CREATE VIEW memory_peak AS
  SELECT k.run_id, k.rank, q.space, q.curve, q.bytes, q.at_ns, q.op, n.value AS op_name
  FROM rank k JOIN run r ON r.id = k.run_id JOIN peak q ON q.run_id = k.run_id AND q.rank = k.stand_in
  LEFT JOIN op o ON o.schedule_id = r.schedule_id AND o.op = q.op LEFT JOIN string n ON n.id = o.name;

CREATE VIEW memory_peak_category AS
  SELECT k.run_id, k.rank, q.space, q.curve, q.category, q.bytes
  FROM rank k JOIN peak_category q ON q.run_id = k.run_id AND q.rank = k.stand_in;

CREATE VIEW memory_samples AS
  SELECT m.run_id, m.rank, s.value AS space, c.value AS curve, g.value AS category, m.at_ns, m.bytes, m.seq
  FROM memory_sample m JOIN string s ON s.id = m.space JOIN string c ON c.id = m.curve JOIN string g ON g.id = m.category;

CREATE VIEW op_stats AS
  SELECT run_id, kind, phase, segment, stage, count(*) AS n, min(duration_ns) AS min_ns, avg(duration_ns) AS avg_ns,
         max(duration_ns) AS max_ns, sum(duration_ns) AS sum_ns
  FROM spans GROUP BY run_id, kind, phase, segment, stage;

-- wait_ns: ready until the counterparts were ready too; transfer_ns: moving data. Members of a group move theirs at the same time: once.
CREATE VIEW comm_summary AS
  SELECT k.run_id, k.rank, t.communicator, t.kind, t.n, t.bytes, t.wait_ns, t.transfer_ns
  FROM rank k JOIN (SELECT run_id, rank, communicator, kind, sum(ops) AS n, sum(bytes) AS bytes, sum(wait_ns) AS wait_ns,
                           sum(transfer_ns) AS transfer_ns
                    FROM (SELECT run_id, rank, communicator, kind, count(*) AS ops, sum(bytes) AS bytes,
                                 min(start_ns) - min(ready_ns) AS wait_ns, max(end_ns) - min(start_ns) AS transfer_ns
                          FROM spans WHERE communicator IS NOT NULL
                          GROUP BY run_id, rank, communicator, kind, step, coalesce(-1 - group_no, op))
                    GROUP BY run_id, rank, communicator, kind) t
    ON t.run_id = k.run_id AND t.rank = k.stand_in;

-- Op by op; the members of a group are one row (they end together), named by their first op. The predicted step is the last.
CREATE VIEW predicted_vs_measured AS
  SELECT a.exec_run, a.sim_run, a.step, a.rank, a.op, k.value AS kind, f.value AS phase, n.value AS name, o.stage, o.micro_batch, a.ops,
         a.predicted_ns, a.measured_ns, 100.0 * (a.predicted_ns - a.measured_ns) / nullif(a.measured_ns, 0) AS error_percent
  FROM (SELECT x.id AS exec_run, p.id AS sim_run, x.schedule_id, m.step, m.rank, min(m.op) AS op, count(*) AS ops,
               max(q.end_ns) - min(q.start_ns) AS predicted_ns, max(m.end_ns) - min(m.start_ns) AS measured_ns
        FROM run x JOIN run p ON p.uid = x.sim_of_uid AND p.schedule_id = x.schedule_id AND p.guard_value = x.guard_value
        JOIN span m ON m.run_id = x.id
        JOIN rank c ON c.run_id = p.id AND c.rank = m.rank
        JOIN span q ON q.run_id = p.id AND q.rank = c.stand_in AND q.step = p.steps - 1 AND q.op = m.op
        JOIN op i ON i.schedule_id = x.schedule_id AND i.op = m.op
        WHERE x.kind = 'exec'
        GROUP BY x.id, m.step, m.rank, coalesce(-1 - i.group_no, i.op)) a
  JOIN op o ON o.schedule_id = a.schedule_id AND o.op = a.op
  JOIN string k ON k.id = o.kind JOIN string f ON f.id = o.phase JOIN string n ON n.id = o.name;

CREATE VIEW diagnostics AS
  SELECT run_id, seq, level, code, rank, op, requested_bytes, capacity_bytes, in_use_bytes, text FROM diag;
CREATE VIEW metrics AS
  SELECT run_id, nullif(rank, -1) AS rank, name, unit, value FROM metric;
