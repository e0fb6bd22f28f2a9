"""execute --save and --load: a checkpoint is whole or absent, fits any mesh, and training goes on as if it had not stopped (issue 5)."""
import json
import os
import signal
import struct
import time
import unittest

from support import Case, SCENARIOS
from execute_test import module_is_there

PIPE = os.path.join(SCENARIOS, "bmtrain_pipe_small.json")  # 2 stages x 2 ranks
SMALL = ["--set", "model.layers=4", "--set", "batch.sequence_length=32", "--set", "batch.micro_batch_size=2", "--set", "pipeline={}",
         "--set", "schedule.order=gpipe", "--no-db", "--json"]
DEEPSPEED = {"level": 3, "form": "deepspeed", "param_persistence_threshold": 1000}  # biases and norms are whole on every rank


def mesh(pp, dp, micro_batches, zero):
    return ["--set", f"mesh.pp={pp}", "--set", f"mesh.dp={dp}", "--set", f"batch.micro_batches={micro_batches}", "--set", "zero=" + json.dumps(zero)]


def batches(pp, dp, count, zero):
    """A batch on every rank, cut into one sample a micro-batch."""
    return [*mesh(pp, dp, count, zero), "--set", "pipeline=" + json.dumps({"form": "bmtrain", "micro_batches": 2 * pp})]


class Checkpoint(Case):
    def setUp(self):
        super().setUp()
        if not module_is_there():
            self.skipTest("built without LibTorch")

    def losses(self, *args):
        return json.loads(self.expect(0, "execute", PIPE, *SMALL, *args).stdout)["losses"]

    def tensors(self, folder):
        """name -> (type, shape, bytes), read by a reader of our own."""
        with open(os.path.join(self.path(folder), "checkpoint.json"), encoding="utf-8") as f:
            index = json.load(f)
        found = {}
        for name in index["files"]:
            with open(os.path.join(self.path(folder), index["folder"], name), "rb") as f:
                data = f.read()
            (length,) = struct.unpack("<Q", data[:8])
            for tensor, entry in json.loads(data[8:8 + length]).items():
                begin, end = entry["data_offsets"]
                found[tensor] = (entry["dtype"], entry["shape"], data[8 + length + begin:8 + length + end])
        return found

    def test_training_goes_on_on_any_mesh_as_if_it_had_not_stopped(self):
        whole = self.losses(*mesh(2, 2, 2, {"level": 3}), "--steps", "6")
        self.losses(*mesh(2, 2, 2, {"level": 3}), "--steps", "3", "--save", "state")
        self.assertEqual(self.losses(*mesh(2, 2, 2, {"level": 3}), "--steps", "3", "--load", "state"), whole[3:], "to the bit on the same mesh")
        for other in (mesh(1, 1, 4, {"level": 0}), mesh(1, 4, 1, {"level": 3}), mesh(1, 4, 1, {"level": 1}), mesh(4, 1, 4, {"level": 2}),
                      mesh(1, 4, 1, DEEPSPEED),
                      batches(2, 2, 1, {"level": 3}), batches(4, 1, 1, {"level": 2})):
            for found, expected in zip(self.losses(*other, "--steps", "3", "--load", "state"), whole[3:]):
                self.assertAlmostEqual(found / expected, 1, delta=1e-6)

    def test_a_pipeline_of_batches_saves_what_any_mesh_loads(self):
        own = batches(3, 2, 2, {"level": 3})  # stages of 2, 1 and 1 layers: embedding and head are sharded over ranks that hold different layers
        whole = self.losses(*own, "--steps", "4")
        self.losses(*own, "--steps", "2", "--save", "state")
        self.assertEqual(self.losses(*own, "--steps", "2", "--load", "state"), whole[2:], "to the bit on the same mesh")
        for other in (mesh(1, 1, 12, {"level": 0}), mesh(2, 3, 4, {"level": 3}), batches(2, 3, 2, {"level": 1})):
            for found, expected in zip(self.losses(*other, "--steps", "2", "--load", "state"), whole[2:]):
                self.assertAlmostEqual(found / expected, 1, delta=1e-6)

    def test_parameters_that_stay_whole_are_saved_once(self):
        whole = self.losses(*mesh(2, 2, 2, DEEPSPEED), "--steps", "4")
        self.losses(*mesh(2, 2, 2, DEEPSPEED), "--steps", "2", "--save", "state")
        self.assertEqual(self.tensors("state")["layers.0.mlp.norm.bias"][:2], ("F32", [64]))
        self.assertEqual(self.losses(*mesh(2, 2, 2, DEEPSPEED), "--steps", "2", "--load", "state"), whole[2:], "to the bit on the same mesh")
        for found, expected in zip(self.losses(*mesh(1, 4, 1, {"level": 3}), "--steps", "2", "--load", "state"), whole[2:]):
            self.assertAlmostEqual(found / expected, 1, delta=1e-6)

    def test_what_is_loaded_is_saved_again_to_the_bit(self):
        self.losses(*mesh(2, 2, 2, {"level": 3}), "--steps", "2", "--save", "first")
        first = self.tensors("first")
        self.assertEqual(first["layers.0.attn.qkv.weight"][:2], ("F32", [192, 64]))
        self.assertEqual(len(first["layers.3.mlp.norm.bias.v"][2]), 4 * 64)
        self.assertNotIn("head.weight", first, "the copy of a tied table is not saved twice")
        parameters = {name: value for name, value in first.items() if not name.endswith((".m", ".v"))}
        for i, other in enumerate((mesh(1, 1, 4, {"level": 0}), mesh(1, 4, 1, {"level": 3, "form": "block"}), mesh(2, 2, 2, {"level": 2}),
                                   mesh(1, 4, 1, DEEPSPEED),
                                   batches(2, 2, 1, {"level": 3}), batches(3, 2, 1, {"level": 3}))):
            # Without an optimizer a step leaves the parameters as they were.
            self.losses(*other, "--set", "optimizer.kind=none", "--steps", "1", "--load", "first", "--save", f"again{i}")
            self.assertEqual(self.tensors(f"again{i}"), parameters)

    def test_a_killed_save_leaves_the_old_checkpoint(self):
        self.losses(*mesh(1, 2, 1, {"level": 3}), "--steps", "1", "--save", "state")
        before = self.tensors("state")
        self.losses(*mesh(1, 2, 1, {"level": 3}), "--steps", "1", "--load", "state", "--save", "state")
        self.assertNotEqual(self.tensors("state"), before)
        before = self.tensors("state")
        killed = 0
        for _ in range(8):
            run = self.start("execute", PIPE, *SMALL, *mesh(1, 2, 1, {"level": 3}), "--set", "model.layers=48", "--steps", "1", "--save", "state")
            known = set(os.listdir(self.path("state")))
            while run.poll() is None and set(os.listdir(self.path("state"))) == known:
                time.sleep(0.0005)  # until it writes its generation
            run.send_signal(signal.SIGKILL)
            run.communicate()
            if self.tensors("state") == before:
                killed += 1
            else:
                break  # it was quicker: the new one is whole, as reading it has shown
        self.assertGreater(killed, 0, "no kill came in time")

    def spoil(self, folder, tensor):
        """Makes the first value of a tensor infinite."""
        with open(os.path.join(self.path(folder), "checkpoint.json"), encoding="utf-8") as f:
            index = json.load(f)
        for name in index["files"]:
            with open(os.path.join(self.path(folder), index["folder"], name), "r+b") as f:
                (length,) = struct.unpack("<Q", f.read(8))
                entry = json.loads(f.read(length)).get(tensor)
                if entry is not None:
                    f.seek(8 + length + entry["data_offsets"][0])
                    f.write(struct.pack("<f", float("inf")))

    def test_a_step_whose_gradients_overflow_is_skipped_on_every_rank(self):
        for pp, dp, zero in ((2, 2, {"level": 3}), (1, 3, {"level": 1}), (1, 3, DEEPSPEED), (1, 2, {"level": 0})):
            at = mesh(pp, dp, 2, zero)
            self.losses(*at, "--steps", "1", "--save", "state")
            self.spoil("state", "layers.3.mlp.up.bias")
            before = self.tensors("state")
            check = ("--set", "optimizer.overflow_check=true")
            self.tool("execute", PIPE, *SMALL, *at, *check, "--steps", "1", "--load", "state", "--save", "skipped")
            self.assertEqual(self.tensors("skipped"), before)
            self.tool("execute", PIPE, *SMALL, *at, "--steps", "1", "--load", "state", "--save", "stepped")
            self.assertNotEqual(self.tensors("stepped"), before)
        # And where all is finite it changes nothing.
        self.assertEqual(self.losses(*at, "--steps", "3"), self.losses(*at, *check, "--steps", "3"))

    def test_complaints(self):
        self.assertIn("no complete checkpoint", self.expect(6, "execute", PIPE, "--no-db", "--load", "nothing").stderr)
        self.losses("--steps", "1", "--save", "state")
        self.assertIn("the scenario needs", self.expect(6, "execute", PIPE, "--no-db", "--load", "state", "--set", "model.hidden=128").stderr)
        self.assertIn("has no tensor layers.4", self.expect(6, "execute", PIPE, "--no-db", "--load", "state", "--set", "model.layers=5").stderr)
        self.assertIn("plain model", self.expect(2, "execute", PIPE, "--no-db", "--load", "state", "--check").stderr)
        index = os.path.join(self.path("state"), "checkpoint.json")
        with open(index, encoding="utf-8") as f:
            parts = json.load(f)
        victim = os.path.join(self.path("state"), parts["folder"], parts["files"][0])
        with open(victim, "r+b") as f:
            f.truncate(os.path.getsize(victim) - 1)
        self.assertIn(parts["files"][0], self.expect(6, "execute", PIPE, *SMALL, "--load", "state").stderr)


if __name__ == "__main__":
    unittest.main()
