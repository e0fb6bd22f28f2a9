"""calibrate: real runs become a machine profile; simulate uses it and says what it does not know (issue 3). Skipped without LibTorch."""
import json
import os
import signal
import unittest

from execute_test import SMALL, module_is_there
from support import Case, SCENARIOS

PIPE = os.path.join(SCENARIOS, "bmtrain_pipe_small.json")
TINY = ["--set", "model.hidden=64", "--set", "batch.micro_batches=2", "--set", "batch.sequence_length=32"]
QUICK = ["--rounds", "2", "--steps", "2"]


class Refusals(Case):
    def test_command_line(self):
        self.assertIn("missing --out", self.expect(2, "calibrate", SMALL).stderr)
        self.assertIn("missing SCENARIO", self.expect(2, "calibrate", "--out", "p.json").stderr)
        self.assertIn("must be one of cpu", self.expect(2, "calibrate", SMALL, "--out", "p.json", "--backend", "gpu").stderr)
        self.assertIn("No such file", self.expect(6, "calibrate", "nowhere.json", "--out", "p.json").stderr)
        self.assertEqual(self.files(), [])

    def test_an_existing_profile_is_kept(self):
        self.write("p.json", "mine")
        self.assertIn("exists already", self.expect(6, "calibrate", SMALL, "--out", "p.json").stderr)
        with open(self.path("p.json"), encoding="utf-8") as f:
            self.assertEqual(f.read(), "mine")

    def test_a_missing_module_says_how_to_get_it(self):
        result = self.expect(7, "calibrate", SMALL, "--out", "p.json", env={"STEPTWIN_MODULE_DIR": "/nonexistent"})
        self.assertIn("libtorch-dev", result.stderr)
        self.assertEqual(self.files(), [], "no half-written profile")

    def test_a_broken_profile_is_named_with_its_place(self):
        profile = {"format": 1, "name": "x", "measured": {"compute": [{"segment": "attn", "phase": "Q", "kernels": ["matmul"]}]}}
        self.write("p.json", json.dumps(profile, indent=1))
        error = self.expect(3, "simulate", SMALL, "--machine", "./p.json").stderr
        self.assertIn("p.json:8:", error)
        self.assertIn("/measured/compute/0/phase", error)
        self.assertIn("is no kernel", error)


class Calibrate(Case):
    def setUp(self):
        super().setUp()
        if not module_is_there():
            self.skipTest("built without LibTorch")

    def test_a_calibrated_scenario_is_predicted_from_measured_times_alone(self):
        report = self.run_json(0, "calibrate", SMALL, *TINY, *QUICK, "--out", "p.json")
        self.assertEqual([(c["ops"], c["measured"]) for c in report["coverage"]], [(report["coverage"][0]["ops"],) * 2])
        with open(self.path("p.json"), encoding="utf-8") as f:
            profile = json.load(f)
        measured = profile["measured"]
        self.assertEqual(measured["environment"]["variables.OMP_NUM_THREADS"], "1")
        self.assertEqual((measured["backend"], measured["mode"], measured["rounds"], measured["steps"]), ("cpu", "interp", 2, 2))
        self.assertEqual(measured["sources"][0]["scenario"], "gpt2_pp4_small")
        self.assertEqual(measured["command"][1:3], ["calibrate", SMALL])
        self.assertTrue(profile["host"]["sources"]["turnaround_us"].startswith("measured"))
        run = self.run_json(0, "simulate", SMALL, *TINY, "--machine", "./p.json", "--no-db")
        self.assertEqual((run["run"]["cost_model"], run["run"]["machine"], run["warnings"]), ("measured", "cpu_measured", []))
        self.assertEqual(run["durations"], {"given": 0, "analytic": 0, "interpolated": 0, "measured": report["coverage"][0]["ops"]})
        # One thread does everything: the step is the sum of its works, which are the shapes' times.
        works = sum(row["time_us"] for row in measured["compute"])
        self.assertGreater(run["summary"]["step_time_ns"], works * 1e3)
        scenario = self.write("s.json", json.dumps({**self.scenario(), "machine": {"profile": "p.json"}}))
        again = self.run_json(0, "simulate", scenario, *TINY, "--no-db")
        self.assertEqual(again["summary"]["trace_digest"], run["summary"]["trace_digest"])
        unknown = self.expect(0, "simulate", SMALL, "--machine", "./p.json", "--no-db")
        self.assertEqual(unknown.stderr.count("were not measured"), 1)
        self.assertIn("compute F attn", unknown.stderr)

    def scenario(self):
        with open(SMALL, encoding="utf-8") as f:
            return json.loads("".join(line for line in f if not line.lstrip().startswith("//")))

    def test_execute_and_compare_on_the_profile(self):
        self.expect(0, "calibrate", SMALL, *TINY, *QUICK, "--out", "p.json")
        self.expect(0, "execute", SMALL, *TINY, "--machine", "./p.json", "--warmup", "1", "--steps", "3")
        comparison = self.run_json(0, "compare", "@last-exec")
        self.assertEqual(comparison["summary"]["matched_fraction"], 1)
        self.assertEqual({"kinds", "ranks", "stages", "peaks", "worst"} - set(comparison), set())
        self.assertEqual(self.rows("SELECT cost_model FROM runs WHERE kind = 'sim'"), [("measured",)])
        other = self.expect(0, "execute", SMALL, *TINY, "--machine", "./p.json", "--mode", "threads", "--no-db")
        self.assertIn("calibrated for --mode interp", other.stderr)

    def test_a_sweep_covers_messages_collectives_copies_and_other_sizes(self):
        self.expect(0, "calibrate", SMALL, *TINY, "--rounds", "1", "--steps", "1", "--sweep", "--out", "p.json")
        with open(self.path("p.json"), encoding="utf-8") as f:
            measured = json.load(f)["measured"]
        self.assertEqual({row["kind"] for row in measured["transfers"]},
                         {"message", "gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"})
        self.assertEqual({row["members"] for row in measured["transfers"] if row["kind"] == "gather"}, {2, 3, 4})
        self.assertIn(("fp32", "bf16"), {(row.get("cast_from"), row.get("cast_to")) for row in measured["copies"]})
        between = self.expect(0, "simulate", SMALL, *TINY, "--set", "batch.micro_batch_size=3", "--machine", "./p.json", "--no-db")
        self.assertNotIn("were not measured", between.stderr)
        beyond = self.expect(0, "simulate", SMALL, *TINY, "--set", "batch.micro_batch_size=16", "--machine", "./p.json", "--no-db")
        self.assertIn("were not measured", beyond.stderr)

    def test_a_sweep_leaves_out_sizes_that_a_pipeline_of_batches_cannot_cut(self):
        tiny = ["--set", "model.layers=2", "--set", "batch.micro_batches=1", "--set", "batch.sequence_length=32", "--set", "mesh.dp=1"]
        said = self.expect(0, "calibrate", PIPE, *tiny, "--rounds", "1", "--steps", "1", "--sweep", "--out", "p.json", "--json")
        self.assertIn("micro-batch size 8", said.stdout + said.stderr)
        self.assertNotIn("micro-batch size 2", said.stdout + said.stderr, "4 samples in 8 micro-batches")
        measured = self.expect(0, "simulate", PIPE, *tiny, "--machine", "./p.json", "--no-db")
        self.assertNotIn("were not measured", measured.stderr)

    def test_interrupting_leaves_no_profile(self):
        process = self.start("calibrate", SMALL, "--rounds", "100", "--out", "p.json")
        self.wait_for(lambda: any(name.startswith("p.json.tmp") for name in self.files()))
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, error)
        self.assertEqual(self.files(), [])


if __name__ == "__main__":
    unittest.main()
