"""Ctrl-C, SIGTERM, kill -9 at random instants, many processes on one database (specs/ux.md 14.12, 14.13)."""
import random
import signal
import time
import unittest

from support import GPT2, Case

LONG = ["simulate", GPT2, "--trace", "summary", "--set", "batch.micro_batches=2000", "--steps", "10000"]  # far longer than any test waits
KILLS = 20


class Interrupts(Case):
    def running(self):
        try:
            return self.rows("SELECT status FROM runs") == [("running",)]
        except Exception:  # not created yet
            return False

    def interrupted_by(self, number, code):
        process = self.start(*LONG)
        self.wait_for(self.running)
        time.sleep(0.3)
        sent = time.monotonic()
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
        self.assertLess(time.monotonic() - sent, 5)  # 1 s on a quiet machine
        self.assertEqual(process.returncode, code, stderr)
        self.assertIn("interrupted", stderr)
        self.assertEqual(self.rows("SELECT status FROM runs"), [("interrupted",)])
        self.sound()

    def test_ctrl_c(self):
        self.interrupted_by(signal.SIGINT, 130)

    def test_terminate(self):
        self.interrupted_by(signal.SIGTERM, 143)

    def test_a_killed_run_is_repaired_by_gc_and_by_the_next_start(self):
        for repair in (["runs", "gc"], ["simulate", GPT2]):
            process = self.start(*LONG, "--db", "k.db")
            self.wait_for(lambda: self.count_running("k.db") == 1)
            process.kill()
            process.communicate()
            self.assertEqual(self.count_running("k.db"), 1)
            self.expect(0, *repair, "--db", "k.db")
            self.assertEqual(self.count_running("k.db"), 0)

    def count_running(self, database):
        try:
            return self.rows("SELECT count(*) FROM runs WHERE status = 'running'", database)[0][0]
        except Exception:
            return -1

    def test_gc_leaves_live_runs_alone(self):
        process = self.start(*LONG)
        self.wait_for(self.running)
        self.assertEqual(self.expect(0, "runs", "gc").stdout, "0 runs marked interrupted\n")
        self.assertTrue(self.running())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


class Kill9(Case):
    def test_twenty_random_instants_leave_the_database_whole(self):
        args = ["simulate", GPT2, "--steps", "40"]
        start = time.monotonic()
        self.expect(0, *args)
        length = time.monotonic() - start
        instants = random.Random(20240607)
        done = 1
        for _ in range(KILLS):
            process = self.start(*args)
            time.sleep(instants.uniform(0, length * 1.1))
            process.kill()
            process.communicate()
            done += process.returncode == 0
            self.assertEqual(self.rows("PRAGMA integrity_check"), [("ok",)])
        self.expect(0, "runs", "gc")
        self.sound()
        self.assertEqual(self.rows("SELECT count(*) FROM runs WHERE status = 'running'"), [(0,)])
        self.assertGreaterEqual(self.rows("SELECT count(*) FROM runs WHERE status = 'ok'")[0][0], done)
        # Whole or not at all: a run has all its spans or none.
        counts = self.rows("SELECT DISTINCT r.status, (SELECT count(*) FROM spans s WHERE s.run_id = r.id) FROM runs r ORDER BY 1")
        whole = max(n for _, n in counts)
        self.assertGreater(whole, 0)
        self.assertLessEqual(set(counts), {("ok", whole), ("interrupted", 0)})


class Parallel(Case):
    def test_eight_runs_on_one_database_are_all_stored(self):
        processes = [self.start("simulate", GPT2, "--steps", "20") for _ in range(8)]
        for process in processes:
            _, stderr = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, stderr)
        self.assertEqual(self.rows("SELECT count(*), count(DISTINCT uid), count(DISTINCT trace_digest) FROM runs WHERE status = 'ok'"), [(8, 8, 1)])
        self.sound()


if __name__ == "__main__":
    unittest.main()
