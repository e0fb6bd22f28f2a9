"""execute and compare: real tensors against the plain model, failures, exit codes (issue 3). Skipped where LibTorch was not found."""
import json
import os
import unittest

from support import Case, binary

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = os.path.join(ROOT, "scenarios", "gpt2_pp4_small.json")
TINY = ["--set", "model.hidden=64", "--set", "batch.micro_batches=2", "--set", "batch.sequence_length=32"]


def module_is_there():
    return os.path.exists(os.path.join(os.path.dirname(os.path.abspath(binary())), "libsteptwin_cpu.so"))


class WithoutModule(Case):
    def test_a_missing_module_says_how_to_get_it(self):
        result = self.expect(7, "execute", SMALL, "--no-db", env={"STEPTWIN_MODULE_DIR": "/nonexistent"})
        self.assertIn("libtorch-dev", result.stderr)


class Execute(Case):
    def setUp(self):
        super().setUp()
        if not module_is_there():
            self.skipTest("built without LibTorch")

    def test_checks_against_the_plain_model_and_compares(self):
        run = json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "3", "--check", "--json").stdout)
        self.assertTrue(run["check"]["holds"])
        self.assertEqual(len(run["losses"]), 3)
        self.assertEqual(run["summary"]["peak_allocated_bytes"], run["summary"]["predicted_peak_allocated_bytes"])
        comparison = json.loads(self.expect(0, "compare", "@last-sim", "@last-exec", "--json").stdout)["summary"]
        self.assertEqual(comparison["matched_fraction"], 1)
        self.assertEqual(comparison["peak_memory_error"], 0)
        self.expect(1, "compare", "@last-exec", "--max-error", "0")

    def test_modes_agree_to_the_bit(self):
        runs = [json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "4", "--no-db", "--json", "--mode", mode).stdout)
                for mode in ("interp", "threads", "interp")]
        self.assertEqual(runs[0]["losses"], runs[1]["losses"])
        self.assertEqual(runs[0]["losses"], runs[2]["losses"])

    def test_training_lowers_the_loss(self):
        run = json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "50", "--check", "--no-db", "--json").stdout)
        self.assertLess(run["losses"][-1], run["losses"][0] - 1)

    def test_failures_are_clear(self):
        self.assertIn("No such file", self.expect(6, "execute", SMALL, "--data", "/nonexistent", "--no-db").stderr)
        self.assertIn("learned positions", self.expect(3, "execute", SMALL, "--set", "batch.sequence_length=4096", "--no-db").stderr)


if __name__ == "__main__":
    unittest.main()
