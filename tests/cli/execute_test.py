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

    def test_a_wrong_gradient_is_found_and_its_tensor_named(self):
        text = self.expect(0, "show", SMALL, *TINY, "--ops").stdout
        # The second micro-batch overwrites what the first has contributed.
        wrong = text.replace("update layers.0.mlp.grad", "write layers.0.mlp.grad", 1)
        self.assertNotEqual(wrong, text)
        result = self.expect(1, "execute", self.write("wrong.sched", wrong), "--check", "--json", "--no-db")
        check = json.loads(result.stdout)["check"]
        self.assertFalse(check["holds"])
        self.assertRegex(check["worst"], r"^layers\.0\.mlp\.")
        self.assertIn(f"error: {check['worst']} differs from the plain model", result.stderr)
        self.expect(0, "execute", self.write("right.sched", text), "--check", "--no-db")

    def test_modes_agree_to_the_bit(self):
        runs = [json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "4", "--no-db", "--json", "--mode", mode).stdout)
                for mode in ("interp", "threads", "interp")]
        self.assertEqual(runs[0]["losses"], runs[1]["losses"])
        self.assertEqual(runs[0]["losses"], runs[2]["losses"])

    def test_gradients_summed_in_16_bits_are_held_to_the_rule_of_16_bits(self):
        sums = ("--set", "mesh.pp=1", "--set", "mesh.dp=2", "--set", "precision.reduce=bf16")
        self.expect(0, "execute", SMALL, *TINY, *sums, "--check", "--no-db")

    def test_training_lowers_the_loss(self):
        run = json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "50", "--check", "--no-db", "--json").stdout)
        self.assertLess(run["losses"][-1], run["losses"][0] - 1)

    def environment(self, **variables):
        run = self.expect(0, "execute", SMALL, *TINY, "--no-db", "--json", env=variables)
        return json.loads(run.stdout)["environment"]

    def test_the_library_environment_is_set_and_recorded(self):
        found = self.environment(OMP_NUM_THREADS="7", OPENBLAS_NUM_THREADS="7")
        self.assertEqual((found["variables"]["OMP_NUM_THREADS"], found["variables"]["OPENBLAS_NUM_THREADS"]), ("1", "1"))
        self.assertEqual(found["library"]["intra_op_threads"], 1)
        kept = self.environment(OPENBLAS_CORETYPE="Prescott", ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16")["variables"]
        self.assertEqual((kept["OPENBLAS_CORETYPE"], kept["ONEDNN_MAX_CPU_ISA"]), ("Prescott", "AVX512_CORE_BF16"))
        self.expect(0, "execute", SMALL, *TINY)
        self.assertEqual(self.rows("SELECT json_extract(machine, '$.environment.variables.OMP_NUM_THREADS') FROM run WHERE kind = 'exec'"), [("1",)])

    def test_onednn_is_not_held_below_avx512_where_the_processor_has_it(self):
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            flags = f.read().split()
        has_it = {"avx512bw", "avx512vl", "avx512dq"} <= set(flags)
        found = self.environment(ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="sse41")["variables"]
        self.assertEqual((found["ONEDNN_MAX_CPU_ISA"], found["DNNL_MAX_CPU_ISA"]), ("AVX512_CORE",) * 2 if has_it else ("AVX2", "sse41"))

    def test_a_schedule_text_without_times_has_no_predicted_time(self):
        text = self.expect(0, "show", SMALL, *TINY, "--ops").stdout
        card = self.expect(0, "execute", self.write("s.sched", text), "--no-db").stdout
        self.assertIn("no time predicted without --machine NAME", card)
        self.assertRegex(self.expect(0, "execute", self.path("s.sched"), "--no-db", "--machine", "cpu").stdout, r"measured .* ms predicted")

    def test_a_checkpoint_save_is_simulated_and_executed_like_a_step(self):
        save = [SMALL, *TINY, "--set", "run.task=save", "--set", "mesh.dp=2", "--set", "zero.level=3"]
        self.expect(0, "validate", *save)
        card = self.expect(0, "simulate", *save, "--no-db").stdout
        self.assertIn("save time", card)
        self.assertNotRegex(card, "MFU|bubble|tokens")
        self.expect(0, "execute", SMALL, *TINY, "--save", "ck", "--no-db")
        run = json.loads(self.expect(0, "execute", *save, "--load", "ck", "--json").stdout)
        self.assertEqual(run["losses"], [])
        self.assertEqual(run["summary"]["peak_allocated_bytes"], run["summary"]["predicted_peak_allocated_bytes"])
        self.assertEqual(json.loads(self.expect(0, "compare", "@last-sim", "@last-exec", "--json").stdout)["summary"]["matched_fraction"], 1)
        for wrong in (["execute", *save, "--check"], ["execute", *save, "--save", "no"], ["show", *save, "--order"], ["show", *save, "--memory"]):
            self.assertIn("run.task=step", self.expect(2, *wrong).stderr)
        self.assertNotIn("no", self.files())

    def test_failures_are_clear(self):
        self.assertIn("No such file", self.expect(6, "execute", SMALL, "--data", "/nonexistent", "--no-db").stderr)
        self.assertIn("learned positions", self.expect(3, "execute", SMALL, "--set", "batch.sequence_length=4096", "--no-db").stderr)


if __name__ == "__main__":
    unittest.main()
