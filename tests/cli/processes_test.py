"""execute as several processes, one per rank, with torchrun's variables: the same numbers as one process, and what happens when one of them
fails, dies, or is started wrongly. Skipped where LibTorch was not found (its TCPStore is what processes talk through)."""
import json
import os
import signal
import socket
import time

from support import SCENARIOS, Case, binary

SMALL = os.path.join(SCENARIOS, "gpt2_pp4_small.json")
TINY = ["--set", "model.hidden=64", "--set", "batch.micro_batches=2", "--set", "batch.sequence_length=32"]
TWO = [*TINY, "--set", "mesh.pp=2"]
REDUCING = [*TINY, "--set", "mesh.pp=1", "--set", "mesh.dp=2", "--set", "zero.level=2"]
FAILING = """mesh pp 2
comm c axes pp
program a ranks 0
  lane run compute
  lane net network
  buffer x 4B
  buffer y 4B
  0 recv on c from 1 dtype fp32 write x lane net
  1 recv on c from 1 dtype fp32 write y lane net
program b ranks 1
  lane run compute
  lane net network
  buffer x 4B resident
  0 send on c to 0 dtype fp32 read x lane net
  1 compute F unheard-of update x lane run after 0
  2 send on c to 0 dtype fp32 read x lane net after 1
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Processes(Case):
    def setUp(self):
        super().setUp()
        if not os.path.exists(os.path.join(os.path.dirname(os.path.abspath(binary())), "libsteptwin_cpu.so")):
            self.skipTest("built without LibTorch")
        self.processes = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def launch(self, world, *args, port=None, **variables):
        port = str(port or free_port())
        for rank in range(world):
            env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
                   "MASTER_PORT": port, **variables}
            self.processes.append(self.start("execute", *args, env={k: v for k, v in env.items() if v is not None}))
        return self.processes

    def ends(self, timeout=30):
        """(exit code, standard output, standard error) of each process, in rank order."""
        return [(p.returncode, out, err) for p in self.processes for out, err in [p.communicate(timeout=timeout)]]

    def good(self, world, *args):
        self.launch(world, *args)
        ends = self.ends()
        self.assertEqual([code for code, _, _ in ends], [0] * world, ends)
        for _, out, err in ends[1:]:
            self.assertEqual((out, err), ("", ""), "one process speaks for all")
        return json.loads(ends[0][1])

    def running(self, database="steptwin.db"):
        try:
            return ("exec", "running") in self.rows("SELECT kind, status FROM runs", database)
        except Exception:  # not created yet
            return False

    def statuses(self):
        return self.rows("SELECT kind, status FROM runs ORDER BY id")


class Results(Processes):
    def test_four_stages_give_the_bits_of_one_process_and_a_whole_trace(self):
        several = self.good(4, SMALL, *TINY, "--steps", "3", "--check", "--json")
        one = json.loads(self.expect(0, "execute", SMALL, *TINY, "--steps", "3", "--check", "--json", "--no-db").stdout)
        self.assertEqual(several["losses"], one["losses"])
        self.assertEqual(several["check"], one["check"], "worst differences included: the gradients are the same")
        self.assertEqual(several["summary"]["peak_allocated_bytes"], one["summary"]["peak_allocated_bytes"])
        self.assertEqual([p["rank"] for p in several["environment"]["processes"]], [0, 1, 2, 3])
        self.assertEqual({p["clock_uncertainty_ns"] for p in several["environment"]["processes"]}, {0})
        comparison = json.loads(self.expect(0, "compare", "@last-sim", "@last-exec", "--json").stdout)["summary"]
        self.assertEqual(comparison["matched_fraction"], 1)
        self.assertEqual(comparison["peak_memory_error"], 0)
        # The ends of a message start and end together though two processes timed them.
        ends = self.rows("SELECT count(*), count(DISTINCT start_ns || ' ' || end_ns) FROM spans WHERE run_id = 2 AND kind IN ('send', 'recv')")
        self.assertEqual(ends[0][0], 2 * ends[0][1])
        self.sound()

    def test_two_ranks_that_share_parameters_give_the_bits_of_one_process(self):
        several = self.good(2, SMALL, *REDUCING, "--steps", "2", "--check", "--json", "--no-db")
        one = json.loads(self.expect(0, "execute", SMALL, *REDUCING, "--steps", "2", "--check", "--json", "--no-db").stdout)
        self.assertEqual((several["losses"], several["check"]), (one["losses"], one["check"]))

    def test_a_checkpoint_is_loaded_by_each_process(self):
        self.expect(0, "execute", SMALL, *TINY, "--steps", "2", "--no-db", "--save", "state")
        one = json.loads(self.expect(0, "execute", SMALL, *TWO, "--load", "state", "--json", "--no-db").stdout)
        self.assertEqual(self.good(2, SMALL, *TWO, "--load", "state", "--json", "--no-db")["losses"], one["losses"])


    # An agent's store outlives an attempt. Here a process that waits for three others keeps it.
    def test_attempts_that_share_the_store_of_an_agent(self):
        port = free_port()
        keeper = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "keeper"}
        keeper = self.start("execute", SMALL, *TINY, "--no-db", env=keeper)
        try:
            for attempt in ("0", "1"):
                self.launch(2, SMALL, *TWO, "--no-db", port=port, TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT=attempt)
                self.assertEqual([code for code, _, _ in self.ends()], [0, 0])
                self.processes.clear()
            self.assertIsNone(keeper.poll())
        finally:
            keeper.kill()
            keeper.communicate()


class Failures(Processes):
    def kill(self, rank, world, *args):
        self.launch(world, SMALL, *args, "--steps", "5000")  # far longer than any test waits
        self.wait_for(self.running)
        time.sleep(0.2)
        self.processes[rank].kill()
        self.processes[rank].wait()
        killed = time.monotonic()
        ends = self.ends(15)
        self.assertLess(time.monotonic() - killed, 10)
        self.assertEqual([code for code, _, _ in ends], [-signal.SIGKILL if r == rank else 7 for r in range(world)], ends)
        return [err for _, _, err in ends]

    def test_a_killed_process_is_missed_by_all(self):
        errors = self.kill(2, 4, *TINY)
        for rank in (0, 1, 3):
            self.assertRegex(errors[rank], r"error: process 2 failed: it has died \(pid \d+ on .*\)\n")
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "error")])
        self.sound()

    def test_a_killed_process_0_is_missed_by_all_and_leaves_the_database_whole(self):
        error = self.kill(0, 2, *TWO)[1]
        self.assertRegex(error, r"process 0 failed|the store of the run at 127\.0\.0\.1:\d+ is lost")
        self.expect(0, "runs", "gc")
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "interrupted")])
        self.sound()

    def test_an_op_that_fails_is_reported_by_all(self):
        self.launch(2, self.write("f.sched", FAILING))
        ends = self.ends()
        for rank, (code, out, err) in enumerate(ends):
            self.assertEqual((code, out), (7, ""), err)
            self.assertIn("rank 1 failed at op `1 compute F unheard-of update x lane run after 0` of step 0: ", err)
            self.assertEqual("error: process 1 failed: " in err, rank == 0)
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "error")])
        self.sound()

    def test_a_stop_of_one_interrupts_all(self):
        self.launch(2, SMALL, *TWO, "--steps", "5000")
        self.wait_for(self.running)
        time.sleep(0.2)
        self.processes[1].send_signal(signal.SIGTERM)
        ends = self.ends(15)
        self.assertEqual(ends[1][0], 143)
        self.assertEqual(ends[0][0], 130)
        self.assertIn("interrupted; run 2 is marked so", ends[0][2])
        self.assertEqual(self.statuses(), [("sim", "ok"), ("exec", "interrupted")])
        self.sound()


class Starts(Processes):
    def refused(self, code, part, world, *args, **variables):
        self.launch(world, SMALL, *TINY, "--no-db", *args, **variables)
        for found, out, err in self.ends():
            self.assertEqual((found, out), (code, ""), err)
            self.assertIn(part, err)
            self.assertIn("\n  help: ", err)

    def test_another_number_of_processes_than_ranks(self):
        self.refused(2, "error: torchrun started 2 processes, but the schedule has 4 ranks: each process runs one rank", 2)

    def test_an_address_that_is_missing(self):
        self.refused(2, "does not know where process 0 runs: MASTER_ADDR is not set", 2, LOCAL_WORLD_SIZE=None, MASTER_ADDR=None)

    def test_options_that_need_one_process(self):
        self.refused(2, "--save needs the state of all ranks in one process", 1, "--save", "state", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
        self.processes.clear()
        self.refused(2, "--mode threads runs all ranks in one process", 1, "--mode", "threads", WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")

    # What listens there takes connections and never answers.
    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.launch(2, SMALL, *TWO, "--no-db", "--timeout", "1", port=port)
            ends = self.ends()
        self.assertEqual([code for code, _, _ in ends], [7, 7], ends)
        self.assertRegex(ends[0][2], rf"error: process 0 cannot serve the store of the run at 127\.0\.0\.1:{port}: .*\n  help: set MASTER_PORT")
        self.assertIn(f"process 1 cannot reach the store of the run: no store answers at 127.0.0.1:{port} within 1000 ms", ends[1][2])

    def test_a_process_that_never_comes(self):
        env = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        error = self.expect(7, "execute", SMALL, *TINY, "--no-db", "--timeout", "1", env=env).stderr
        self.assertIn("of 4 processes these have not joined within 1000 ms: 1, 2, 3", error)

    def test_one_process_of_a_launcher_runs_all_ranks(self):
        self.expect(0, "execute", SMALL, *TINY, "--no-db", env={"RANK": "0", "WORLD_SIZE": "1"})

    def test_calibrate_runs_alone(self):
        error = self.expect(2, "calibrate", SMALL, "--out", "x.json", env={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}).stderr
        self.assertIn("calibrate runs in one process", error)
