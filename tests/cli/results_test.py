"""Looking at stored runs: query, runs, trace export, show."""
import csv
import io
import json
import os
import unittest

from support import GPT2, Case


class Query(Case):
    def setUp(self):
        super().setUp()
        self.expect(0, "simulate", GPT2, "--label", "base")

    def test_formats_agree(self):
        sql = "select rank, count(*) as n, min(start_ns) as first from spans group by rank order by rank"
        as_json = json.loads(self.expect(0, "query", sql, "--json").stdout)
        self.assertEqual(as_json["schema"], "steptwin.query/1")
        as_lines = [json.loads(line) for line in self.expect(0, "query", sql, "--format", "jsonl").stdout.splitlines()]
        as_csv = list(csv.DictReader(io.StringIO(self.expect(0, "query", sql, "--format", "csv").stdout)))
        self.assertEqual(as_json["rows"], as_lines)
        self.assertEqual([{k: str(v) for k, v in row.items()} for row in as_lines], as_csv)
        self.assertEqual(len(as_csv), 4)
        self.assertEqual(len(self.expect(0, "query", sql).stdout.splitlines()), 5)
        self.assertEqual(len(self.expect(0, "query", sql, "--format", "md").stdout.splitlines()), 6)

    def test_no_rows_still_have_a_header(self):
        self.assertEqual(self.expect(0, "query", "select id from runs where 0", "--format", "csv").stdout, "id\n")

    def test_every_canned_query_runs(self):
        names = [row["name"] for row in json.loads(self.expect(0, "query", "--list", "--json").stdout)["rows"]]
        self.assertGreaterEqual(len(names), 5)
        for name in names:
            self.expect(0, "query", "--name", name)
            self.expect(0, "query", "--name", name, "base", "--format", "csv")
            self.assertIn("SELECT", self.expect(0, "query", "--show", name).stdout.upper())
        self.assertIn(names[0], self.expect(2, "query", "--name", names[0] + "x").stderr)

    def test_it_cannot_write(self):
        for sql in ("delete from run", "create table t(x)", "attach 'x.db' as x", "pragma user_version = 7", "select 1; delete from run"):
            self.expect(2, "query", sql)
        self.assertEqual(self.files(), [f for f in self.files() if f.startswith("steptwin.db")])
        self.assertEqual(self.rows("SELECT count(*) FROM runs"), [(1,)])

    def test_sql_from_a_file_and_from_stdin(self):
        self.write("q.sql", "select count(*) as n from runs")
        self.assertEqual(self.expect(0, "query", "-f", "q.sql", "--format", "csv").stdout, "n\n1\n")
        self.assertEqual(self.expect(0, "query", "-f", "-", "--format", "csv", stdin="select 2 as n").stdout, "n\n2\n")


class Runs(Case):
    def test_list_show_and_remove(self):
        first = self.run_json(0, "simulate", GPT2, "--label", "first")
        self.expect(0, "simulate", GPT2)
        listed = json.loads(self.expect(0, "runs", "list", "--json").stdout)["rows"]
        self.assertEqual([row["id"] for row in listed], [1, 2])
        uid = first["volatile"]["uid"]
        for word in ("1", uid, uid[:8], "first"):
            shown = json.loads(self.expect(0, "runs", "show", word, "--json").stdout)["rows"]
            self.assertEqual(shown[0]["uid"], uid)
        self.assertIn("step_time_ns", self.expect(0, "runs", "show", "@last").stdout)
        self.expect(0, "runs", "rm", "first")
        self.expect(2, "runs", "show", "first")
        self.assertEqual(self.rows("SELECT count(*) FROM runs"), [(1,)])
        self.assertEqual(self.rows("SELECT count(*) FROM spans WHERE run_id = 1"), [(0,)])
        self.assertEqual(self.expect(0, "runs", "check").stdout, "ok\n")

    def test_check_finds_damage(self):
        self.expect(0, "simulate", GPT2)
        import sqlite3
        connection = sqlite3.connect(self.path("steptwin.db"))
        connection.execute("DELETE FROM run")  # a client without foreign keys
        connection.commit()
        connection.close()
        self.assertIn("span", self.expect(1, "runs", "check").stdout)

    def test_the_stored_numbers_are_the_printed_ones(self):
        document = self.run_json(0, "simulate", GPT2)
        row = self.rows("SELECT step_time_ns, schedule_digest, trace_digest, bubble_fraction, peak_allocated_bytes FROM runs")[0]
        summary = document["summary"]
        self.assertEqual(row, tuple(summary[k] for k in ("step_time_ns", "schedule_digest", "trace_digest", "bubble_fraction", "peak_allocated_bytes")))


class Export(Case):
    def setUp(self):
        super().setUp()
        self.expect(0, "simulate", GPT2)

    def test_perfetto_and_csv(self):
        self.expect(0, "trace", "export", "@last", "-o", "t.pftrace")
        self.assertGreater(os.path.getsize(self.path("t.pftrace")), 10000)
        self.expect(0, "trace", "export", "@last", "--ranks", "0-1", "-o", "half.pftrace")
        self.assertLess(os.path.getsize(self.path("half.pftrace")), os.path.getsize(self.path("t.pftrace")))
        spans = list(csv.DictReader(io.StringIO(self.expect(0, "trace", "export", "1", "--format", "csv", "-o", "-").stdout)))
        self.assertEqual(len(spans), self.rows("SELECT count(*) FROM spans")[0][0])

    def test_nothing_is_overwritten_without_force(self):
        self.write("t.pftrace", "precious")
        result = self.expect(6, "trace", "export", "1", "-o", "t.pftrace")
        self.assertIn("--force", result.stderr)
        with open(self.path("t.pftrace"), encoding="utf-8") as f:
            self.assertEqual(f.read(), "precious")
        self.expect(0, "trace", "export", "1", "-o", "t.pftrace", "--force")
        self.assertGreater(os.path.getsize(self.path("t.pftrace")), 10000)

    def test_failures_leave_no_file(self):
        before = self.files()
        self.assertIn("No space left on device", self.expect(6, "trace", "export", "1", "-o", "/dev/full").stderr)
        self.expect(6, "trace", "export", "1", "-o", "no/such/folder/t.pftrace")
        self.expect(2, "trace", "export", "1", "-o", "t.pftrace", "--ranks", "7-3")
        self.expect(2, "trace", "export", "1")
        self.expect(2, "trace", "export", "77", "-o", "t.pftrace")
        self.assertEqual([f for f in self.files() if "pftrace" in f], [f for f in before if "pftrace" in f])


class Show(Case):
    def test_views(self):
        resolved = self.expect(0, "show", GPT2, "--set", "batch.micro_batches=16").stdout
        self.assertRegex(resolved, r"batch\.micro_batches +16 +--set")
        self.assertIn("default", resolved)
        json.loads(self.expect(0, "show", GPT2, "--json").stdout)
        self.assertEqual(len([line for line in self.expect(0, "show", GPT2, "--order").stdout.splitlines() if line.startswith("r")]), 4)
        one = self.expect(0, "show", GPT2, "--ops", "--rank", "3").stdout
        self.assertEqual(one, self.expect(0, "show", GPT2, "--ops", "--program", "pp3").stdout)
        self.expect(2, "show", GPT2, "--ops", "--rank", "4")
        self.expect(2, "show", GPT2, "--ops", "--program", "pp9")

    def test_memory_closed_forms_match_the_derived_states(self):
        rows = json.loads(self.expect(0, "show", GPT2, "--memory", "--json").stdout)["rows"]
        for row in rows:
            if row["memory"] in ("parameters", "gradients", "optimizer"):
                self.assertEqual(row["closed_form_bytes"], row["derived_bytes"], row)
        peaks = [row["derived_bytes"] for row in rows if row["memory"] == "peak"]
        simulated = self.run_json(0, "simulate", GPT2, "--no-db")
        self.assertEqual(peaks, [rank["peak_allocated_bytes"] for rank in simulated["ranks"]])


if __name__ == "__main__":
    unittest.main()
