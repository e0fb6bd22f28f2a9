"""execute when things go wrong: one clear message (place, cause, remedy), the stated exit code, a database that stays whole.

The execution module is the one of tests/fake_ops, so nothing here needs LibTorch: segments "fail", "sleep" (5 ms) and "nan" do what
they say.
"""
import os
import random
import signal
import sqlite3
import time
import unittest

from support import SCENARIOS, Case, binary

FAKE = os.path.join(os.path.dirname(os.path.abspath(binary())), "tests", "fake_module")
SMALL = os.path.join(SCENARIOS, "gpt2_pp4_small.json")
MODES = ("interp", "threads")
FAILING = """mesh pp 2
comm c axes pp
program a ranks 0
  lane run compute
  lane net network
  buffer x 4B
  0 compute F one write x lane run
  1 recv on c from 1 dtype fp32 write x lane net after 0
program b ranks 1
  lane run compute
  lane net network
  buffer x 4B
  0 compute F {} write x lane run
  1 send on c to 0 dtype fp32 read x lane net after 0
"""


def sleeping(ops):
    head = "mesh pp 2\nprogram a ranks all\n  lane run compute\n  buffer x 4B\n"
    return head + "".join(f"  {k} compute F sleep write x\n" for k in range(ops))


class FakeModule(Case):
    def setUp(self):
        super().setUp()
        self.assertTrue(os.path.isdir(FAKE), "build the target fake_module")

    def execute(self, code, *args, **more):
        return self.expect(code, "execute", *args, env={"STEPTWIN_MODULE_DIR": FAKE}, **more)

    def statuses(self, database="steptwin.db"):
        return self.rows("SELECT kind, status FROM runs ORDER BY id", database)


class Ops(FakeModule):
    def test_an_op_that_fails_names_rank_and_op_and_is_kept_with_the_run(self):
        path = self.write("f.sched", FAILING.format("fail"))
        for mode in MODES:
            error = self.execute(7, path, "--mode", mode).stderr
            self.assertIn("error: rank 1 failed at op `0 compute F fail write x lane run` of step 0: boom", error)
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "error")] * 2)
        self.assertIn("rank 1 failed", self.rows("SELECT status_text FROM run WHERE id = 2")[0][0])
        self.sound()

    def test_memory_that_does_not_exist(self):
        path = self.write("f.sched", "mesh pp 1\nprogram a ranks all\n  lane run compute\n  buffer x 4B\n  buffer huge 1024TiB\n"
                                     "  0 compute F one write x\n  1 compute F one write huge\n")
        error = self.execute(6, path).stderr
        self.assertRegex(error, r"error: the buffers of all ranks .* take at least 1\.000 PiB, but this computer has .* free")
        self.assertIn("help: a smaller model or batch", error)
        self.assertEqual(self.statuses(), [("sim", "ok")], "refused before it began")

    def test_ranks_that_fit_one_by_one_but_not_together(self):
        path = self.write("f.sched", "mesh dp 4096\nprogram a ranks all\n  lane run compute\n  buffer x 1GiB\n  0 compute F one write x\n")
        self.assertIn("take at least 4.000 TiB", self.execute(6, path, "--no-db").stderr)

    def test_more_steps_than_can_be_kept(self):
        path = self.write("f.sched", FAILING.format("one"))
        for option in ("--steps", "--warmup"):
            self.assertIn(f"{option} 2147483647: at most 10000", self.execute(2, path, option, "2147483647").stderr)

    def test_threads_that_cannot_be_started(self):
        path = self.write("f.sched", FAILING.format("one"))
        prefix = ["prlimit", f"--stack={200 << 40}"]  # no thread has such a stack
        if self.tool("version", prefix=prefix).returncode != 0:
            self.skipTest("this system grants no such limit")
        error = self.execute(7, path, "--mode", "threads", prefix=prefix).stderr
        self.assertRegex(error, r"worker thread \d+ cannot be started.*\n  help: --mode interp needs none")

    def test_the_timeout_ends_a_step_and_says_where_each_rank_stands(self):
        path = self.write("s.sched", sleeping(1000))
        for mode in MODES:
            start = time.monotonic()
            error = self.execute(7, path, "--timeout", "1", "--mode", mode).stderr
            self.assertLess(time.monotonic() - start, 4)  # 5 s and more without the timeout
            self.assertIn("the deadline of 1000 ms passed in step 0", error)
            for rank in (0, 1):
                self.assertRegex(error, rf"\n  rank {rank} \(step 0\) stands at `\d+ compute F sleep write x")
            self.assertIn("help: a longer --timeout", error)
        self.sound()

    def test_a_deadlock_is_explained_once_and_not_started(self):
        error = self.execute(5, os.path.join(SCENARIOS, "hang_ring3.sched")).stderr
        self.assertEqual(error.count("schedule deadlocks"), 1)
        self.assertEqual(self.statuses(), [("sim", "deadlock")])

    def test_a_loss_that_is_no_number(self):
        path = self.write("n.sched", "mesh pp 1\nlayout loss\n  tensor loss fp32 1 at 0\nprogram a ranks all\n  lane run compute\n"
                                     "  buffer l layout loss\n  0 compute F nan write l\n")
        result = self.execute(1, path, "--steps", "2", "--json")
        self.assertIn("error: the loss of step 1 is not a number", result.stderr)
        self.assertIn("help: ", result.stderr)
        self.assertIn("null", result.stdout)  # JSON has no NaN
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "ok")])
        self.sound()


class Files(FakeModule):
    def data(self, *args, **more):
        return self.execute(6, SMALL, "--no-db", *args, **more).stderr

    def test_training_texts_that_cannot_be_read(self):
        error = self.data("--data", "nowhere")
        self.assertRegex(error, r"training text: cannot read nowhere: No such file.*\n  help: --data takes any file")
        self.assertIn("cannot read .: Is a directory", self.data("--data", "."))
        self.write("secret.txt", "x" * 1000)
        os.chmod(self.path("secret.txt"), 0)
        unprivileged = ["setpriv", "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        self.assertIn("cannot read secret.txt: Permission denied", self.data("--data", "secret.txt", prefix=unprivileged))

    def test_training_texts_that_are_too_short(self):
        self.write("short.txt", "x" * 128)
        self.write("enough.txt", "x" * 129)
        for name, size in (("short.txt", 128), ("/dev/null", 0)):
            error = self.data("--data", name)
            self.assertIn(f"training text {name} has {size} bytes; a sequence of 128 tokens needs at least 129", error)
            self.assertIn("help: give a longer file with --data FILE", error)
        self.execute(0, SMALL, "--no-db", "--data", "enough.txt")

    def test_an_endless_file_is_refused(self):
        self.assertIn("larger than", self.execute(3, SMALL, "--no-db", "--data", "/dev/zero").stderr)

    def test_a_sequence_beyond_the_positions(self):
        error = self.execute(3, SMALL, "--no-db", "--set", "batch.sequence_length=4096").stderr
        self.assertIn("beyond the model's 128 learned positions [SEQUENCE]", error)
        self.assertIn("help: use at most 128", error)

    def test_modules_that_are_none(self):
        with open(self.path("libsteptwin_cpu.so"), "w", encoding="utf-8") as f:
            f.write("no module")
        for folder, words in (("/nowhere", "not found in /nowhere, where STEPTWIN_MODULE_DIR says it is"),
                              (self.folder, "cannot be loaded")):
            error = self.expect(7, "execute", SMALL, env={"STEPTWIN_MODULE_DIR": folder}).stderr
            self.assertIn(words, error)
            self.assertIn("apt install libtorch-dev", error)
        self.assertFalse(os.path.exists(self.path("steptwin.db")))


class Signals(FakeModule):
    def executing(self, database):
        try:
            return ("exec", "running") in self.statuses(database)
        except sqlite3.Error:  # not created yet
            return False

    def ended_by(self, number, code, mode):
        database = f"{mode}{number}.db"
        path = self.write("s.sched", sleeping(100))
        process = self.start("execute", path, "--steps", "2000", "--mode", mode, "--db", database, env={"STEPTWIN_MODULE_DIR": FAKE})
        self.wait_for(lambda: self.executing(database))
        time.sleep(0.2)
        sent = time.monotonic()
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
        self.assertLess(time.monotonic() - sent, 5)
        self.assertEqual(process.returncode, code, error)
        self.assertIn("interrupted; run 2 is marked so", error)
        self.assertEqual(self.statuses(database), [("sim", "ok"), ("exec", "interrupted")])
        self.assertEqual(self.rows("SELECT count(*) FROM span WHERE run_id = 2", database), [(0,)])
        self.sound(database)

    def test_ctrl_c_and_terminate_in_both_modes(self):
        for mode in MODES:
            self.ended_by(signal.SIGINT, 130, mode)
            self.ended_by(signal.SIGTERM, 143, mode)

    def test_kill_at_random_instants_leaves_the_database_whole(self):
        args = ["execute", self.write("s.sched", sleeping(20)), "--steps", "3"]
        start = time.monotonic()
        self.execute(0, *args[1:])
        length = time.monotonic() - start
        instants = random.Random(20240611)
        for i in range(12):
            process = self.start(*args, "--mode", MODES[i % 2], env={"STEPTWIN_MODULE_DIR": FAKE})
            time.sleep(instants.uniform(0, length * 1.1))
            process.kill()
            process.communicate()
            self.assertEqual(self.rows("PRAGMA integrity_check"), [("ok",)])
        self.execute(0, *args[1:])
        self.expect(0, "runs", "gc")
        self.sound()
        # Whole or not at all: 20 ops x (2 steps of 1 rank that stands for both, predicted; 3 steps of 2 ranks, executed), or no spans.
        found = self.rows("SELECT DISTINCT kind, status, (SELECT count(*) FROM span WHERE run_id = runs.id) FROM runs")
        self.assertLessEqual(set(found), {("sim", "ok", 40), ("exec", "ok", 120), ("sim", "interrupted", 0), ("exec", "interrupted", 0)})
        self.assertLessEqual({("sim", "ok", 40), ("exec", "ok", 120)}, set(found))


if __name__ == "__main__":
    unittest.main()
