"""What a simulation may end with: ok, failed check, bad input, out of memory, deadlock; and that its JSON is reproducible."""
import json
import os
import re
import unittest

from support import GPT2, SCENARIOS, Case

BIG = os.path.join(SCENARIOS, "llama3_405b.json")

# specs/schedules.md 7.5 A (NVIDIA/nccl#479), on a ring of n ranks: send, then receive, on one lane. B2: the even ranks receive first.
RING = """mesh pp {n}
comm p2p axes pp
{programs}"""
PROGRAM = """program pp{r} ranks pp={r}
  lane p2p network
  0 {first} bytes 1MiB lane p2p
  1 {second} bytes 1MiB lane p2p
"""
SEND, RECV = "send on p2p to +1", "recv on p2p from -1"

BROKEN = """mesh pp 2
comm p2p axes pp
program pp0 ranks pp=0
  lane p2p network
  0 send on p2p to 1 bytes 1MiB lane p2p
program pp1 ranks pp=1
  lane p2p network
  0 recv on p2p from 0 bytes 2MiB lane p2p
"""


def ring(n, receives_first=()):
    programs = "".join(PROGRAM.format(r=r, first=RECV if r in receives_first else SEND, second=SEND if r in receives_first else RECV) for r in range(n))
    return RING.format(n=n, programs=programs)


class Deadlock(Case):
    def test_rings_that_send_first_hang_and_name_every_rank(self):
        for n in (2, 3, 4, 5):
            path = self.write(f"ring{n}.sched", ring(n))
            result = self.expect(5, "simulate", path)
            for rank in range(n):
                self.assertRegex(result.stderr, rf"rank {rank} .*send on p2p")
            self.assertEqual(self.rows("SELECT status FROM runs ORDER BY id DESC LIMIT 1"), [("deadlock",)])

    def test_a_rank_that_receives_first_cures_it(self):
        for n in (2, 3, 4, 5):
            self.expect(0, "simulate", self.write("ring.sched", ring(n, receives_first=(0,))), "--no-db")

    def test_without_verify_the_engine_meets_it(self):
        path = self.write("ring.sched", ring(3))
        for engine in ("auto", "replay", "event"):
            result = self.expect(5, "simulate", path, "--no-verify", "--engine", engine)
            self.assertIn("rank 2", result.stderr)
        self.assertEqual(self.rows("SELECT DISTINCT status FROM runs"), [("deadlock",)])
        document = self.run_json(5, "simulate", path, "--no-db")
        self.assertEqual(document["summary"]["status"], "deadlock")

    def test_shipped_hangs(self):
        names = [n for n in sorted(os.listdir(SCENARIOS)) if n.startswith("hang_") and n.endswith(".sched")]
        self.assertGreaterEqual(len(names), 2)
        for name in names:
            result = self.expect(5, "simulate", os.path.join(SCENARIOS, name), "--no-db")
            self.assertIn("rank 0", result.stderr)
            self.assertIn("rank 1", result.stderr)

    def test_dry_run_tells_too(self):
        self.expect(5, "simulate", self.write("ring.sched", ring(2)), "--dry-run")
        self.assertEqual(self.files(), ["ring.sched"])


class BadInput(Case):
    def test_any_other_verify_error_exits_3(self):
        path = self.write("broken.sched", BROKEN)
        result = self.expect(3, "simulate", path)
        self.assertIn("[SIZE]", result.stderr)
        self.assertNotIn("steptwin.db", self.files())

    def test_syntax_errors_have_positions(self):
        path = self.write("bad.sched", "mesh pp 2\nprogramm pp0\n")
        self.assertIn(f"{path}:2:1", self.expect(3, "simulate", path).stderr)
        path = self.write("bad.json", '{\n  "format": 1,\n  "mesch": {"pp": 4}\n}\n')
        result = self.expect(3, "simulate", path)
        self.assertIn(f"{path}:3:3 (/mesch)", result.stderr)
        self.assertIn("mesh", result.stderr)

    def test_validate_checks_all_files_and_exits_1(self):
        good, bad = self.write("good.sched", ring(2, (0,))), self.write("bad.sched", BROKEN)
        result = self.expect(1, "validate", bad, good, "missing.json")
        self.assertEqual(result.stdout, f"{bad}: FAILED\n{good}: ok\nmissing.json: FAILED\n")
        self.expect(0, "validate", good, GPT2)
        report = json.loads(self.expect(1, "validate", bad, good, "--json").stdout)
        self.assertEqual([row["code"] for row in report["rows"]], ["SIZE"])


class OutOfMemory(Case):
    def test_it_exits_4_and_names_rank_op_bytes_and_holders(self):
        result = self.expect(4, "simulate", BIG)
        self.assertRegex(result.stderr, r"out of memory on rank \d+ .*needs [\d.]+ GiB, capacity 139\.\d GiB")
        self.assertIn("optimizer", result.stderr)
        self.assertEqual(self.rows("SELECT status FROM runs"), [("oom",)])
        self.assertGreater(self.rows("SELECT max(bytes) FROM memory_peak WHERE curve = 'allocated'")[0][0], 140 * 2**30)

    def test_allow_oom_exits_0(self):
        document = self.run_json(0, "simulate", BIG, "--allow-oom", "--no-db")
        self.assertEqual(document["summary"]["status"], "oom")
        self.assertGreater(document["outcome"]["capacity_bytes"], 0)
        self.assertGreater(document["summary"]["step_time_ns"], 0)

    def test_the_remedies_work(self):
        tight = ["--set", "machine.device.memory_gib=2.3"]
        result = self.expect(4, "simulate", GPT2, "--no-db", *tight)
        remedies = re.findall(r"\((--set [^)]*)\)", result.stderr)
        self.assertGreaterEqual(len(remedies), 1, result.stderr)
        for remedy in remedies:
            self.expect(0, "simulate", GPT2, "--no-db", *tight, *remedy.split())

    def test_where_nothing_helps_it_says_so(self):
        result = self.expect(4, "simulate", GPT2, "--no-db", "--set", "machine.device.memory_gib=0.05")
        self.assertIn("do not suffice", result.stderr)


class Expectations(Case):
    def test_a_check_that_fails_exits_1(self):
        self.expect(0, "simulate", GPT2, "--no-db", "--expect", "step_ms<100000", "--expect", "bubble_pct>0")
        result = self.expect(1, "simulate", GPT2, "--no-db", "--expect", "step_ms<0.001")
        self.assertIn("expect 'step_ms<0.001' does not hold", result.stderr)
        self.expect(2, "simulate", GPT2, "--no-db", "--expect", "stepms<1")


class Reproducible(Case):
    def identity(self, *args, **more):
        document = self.run_json(0, "simulate", *args, **more)
        document.pop("volatile")
        return json.dumps(document)

    def test_equal_inputs_give_equal_bytes(self):
        first = self.identity(GPT2)
        self.assertEqual(first, self.identity(GPT2))
        self.assertEqual(first, self.identity(GPT2, "--no-db", "-q"))

    def test_engines_and_folding_agree(self):
        digests = set()
        for args in ([], ["--engine", "replay"], ["--engine", "event"]):
            digests.add(self.run_json(0, "simulate", GPT2, "--no-db", *args)["summary"]["trace_digest"])
        self.assertEqual(len(digests), 1)
        wide = ["--no-db", "--set", "mesh.dp=2"]
        folded, unfolded = (self.run_json(0, "simulate", GPT2, *wide, "--fold", f) for f in ("on", "off"))
        for key in ("step_time_ns", "peak_allocated_bytes", "peak_active_bytes"):
            self.assertEqual(folded["summary"][key], unfolded["summary"][key])

    def test_the_text_form_gives_the_same_times_as_stated(self):
        text = self.expect(0, "show", GPT2, "--ops").stdout
        path = self.write("gpt2.sched", text)
        again = self.run_json(0, "simulate", path, "--machine", "h200_node", "--no-db")
        direct = self.run_json(0, "simulate", GPT2, "--no-db")
        for key in ("schedule_digest", "trace_digest", "step_time_ns"):
            self.assertEqual(again["summary"][key], direct["summary"][key])

    def test_classes_add_up_to_the_step(self):
        document = self.run_json(0, "simulate", GPT2, "--no-db")
        for rank in document["ranks"]:
            parts = sum(rank[k] for k in ("compute_ns", "exposed_communication_ns", "bubble_ns", "other_ns"))
            self.assertEqual(parts, document["summary"]["step_time_ns"])


class DryRun(Case):
    def test_it_writes_nothing_and_says_what_it_would(self):
        result = self.expect(0, "simulate", GPT2, "--dry-run")
        self.assertEqual(self.files(), [])
        self.assertIn("./steptwin.db", result.stdout)
        plan = self.run_json(0, "simulate", GPT2, "--dry-run")
        real = self.run_json(0, "simulate", GPT2)
        self.assertEqual(plan["peak_allocated_bytes"], real["summary"]["peak_allocated_bytes"])
        self.assertEqual(plan["op_instances"], real["summary"]["ops"])
        self.assertEqual(plan["schedule_digest"], real["summary"]["schedule_digest"])

    def test_machine_can_be_a_preset_or_a_file(self):
        profile = os.path.join(SCENARIOS, "machines", "h100_node.json")
        by_name = self.run_json(0, "simulate", GPT2, "--no-db", "--machine", "h100_node")
        by_file = self.run_json(0, "simulate", GPT2, "--no-db", "--machine", profile)
        self.assertEqual(by_name["summary"]["step_time_ns"], by_file["summary"]["step_time_ns"])
        self.assertNotEqual(by_name["summary"]["step_time_ns"], self.run_json(0, "simulate", GPT2, "--no-db")["summary"]["step_time_ns"])
        self.assertIn("h100_node", self.tool("simulate", GPT2, "--machine", "h100_nod", "--no-db").stderr)


if __name__ == "__main__":
    unittest.main()
