"""Wrong and hostile input to every verb: the stated exit code, one message, never a crash, a hang or a silent wrong answer."""
import json
import os
import random
import re
import sqlite3
import subprocess
import time
import unittest

from support import GPT2, SCENARIOS, Case, binary, clean_environment

RING = os.path.join(SCENARIOS, "ok_ring3.sched")
BIG = os.path.join(SCENARIOS, "llama3_405b.json")
GIVEN = '{"model": "given", "forward_us": 0, "input_grad_us": 0, "weight_grad_us": 0}'


class Texts(Case):
    def test_a_zero_byte_does_not_end_the_file(self):
        with open(GPT2, "rb") as f:
            text = f.read()
        for ending in (b"\0", b"\0 trailing"):
            with open(self.path("s.json"), "wb") as f:
                f.write(text + ending)
            self.assertIn("zero byte", self.expect(3, "simulate", "s.json", "--no-db").stderr)

    def test_a_schedule_without_ops_is_an_error(self):
        program = "program p ranks all\n"
        for text in ("mesh pp 1\n", "mesh pp 1\n" + program, "mesh pp 1\n" + program + "  lane compute compute\n"):
            path = self.write("s.sched", text)
            for verb in ("simulate", "show"):
                self.assertIn("[EMPTY]", self.expect(3, verb, path, "--ops" if verb == "show" else "--no-db").stderr)
            self.expect(1, "validate", path)

    def test_a_run_of_no_time_is_warned_of(self):
        self.assertIn("every op takes 0 ns", self.expect(0, "simulate", RING, "--no-db").stderr)
        self.assertNotIn("0 ns", self.expect(0, "simulate", RING, "--no-db", "--machine", "h200_node").stderr)
        self.assertIn("every op takes 0 ns", self.expect(0, "simulate", GPT2, "--no-db", "--set", "machine=null", "--set", "cost=" + GIVEN).stderr)

    def test_a_byte_order_mark_is_no_text(self):
        self.expect(0, "simulate", self.write("s.sched", "\ufeffmesh pp 1\nprogram p ranks all\n  lane c compute\n  0 compute F time 1ms\n"), "--no-db")

    def test_an_empty_name(self):
        self.expect(2, "simulate", "", "--no-db")


# A sound schedule, and what to put in place of one of its words.
SOUND = """mesh pp 2
comm c axes pp
layout l
  tensor t fp32 4x4 at 0
work w0
  matmul fp32 batch 1 m 2 n 2 k 2 bytes 4B
program p ranks all
  lane run compute
  lane net network
  buffer x 64B layout l
  0 compute F attn L0 c0 mb0 s0 work w0 write x lane run time 1us
  1 all_reduce on c dtype fp32 update x lane net after 0
  2 host_wait for 1
  3 send on c to +1 read x[piece 1/2] lane net group 1
  4 recv on c from -1 write x[piece 0/2] lane net group 1
"""
HUGE = ("18446744073709551616", "9223372036854775808", "4611686018427387904", "9" * 400)
SIZES = ["4x4", "at 0", "batch 1", "m 2", "bytes 4B", "64B", "time 1us"]
NUMBERS = ["pp 2\n", "w0\n", "0 compute", "L0", "c0", "mb0", "s0", "after 0", "for 1", "to +1", "from -1", "piece 1/2", "piece 0/2",
           "group 1\n  4"]


class Overflows(Case):
    def refused(self, text, what, name="s.sched", code=3):
        path = self.write(name, text)
        result = self.tool("simulate", path, "--no-db", timeout=60)
        self.assertEqual(result.returncode, code, f"{what}: {result.stderr[:500]}")
        self.assertRegex(result.stderr, r"^error: [^\n]{1,300} \[[A-Z-]+\]\n", what)
        self.assertNotIn("internal", result.stderr)
        self.assertLess(len(result.stderr), 20_000, what)

    def test_numbers_beyond_every_type(self):
        self.expect(0, "simulate", self.write("s.sched", SOUND), "--no-db")
        for place in SIZES + NUMBERS:
            self.assertEqual(SOUND.count(place), 1, place)
            for big in HUGE + (("4294967296",) if place in NUMBERS else ()):
                changed = re.sub(r"\d+", big, place, count=1)
                self.refused(SOUND.replace(place, changed), changed[:60])

    def test_products_and_sums_beyond_every_type(self):
        for shape in ("x".join(["1000000000"] * 3), "x".join(["2"] * 64), "x".join(["4294967296"] * 2)):
            self.refused(SOUND.replace("4x4", shape), shape)
        self.refused(SOUND.replace("batch 1 m 2 n 2 k 2", " ".join(f"{k} 4000000000" for k in ("batch", "m", "n", "k"))), "flops")
        self.refused(SOUND.replace("mesh pp 2", "mesh " + " ".join(f"a{i} 1000000" for i in range(20))), "mesh")

    def test_lines_and_words_without_end(self):
        long = 10_000_000
        op = "  5 compute F "
        for what, text in (("a word", SOUND + op + "lane " + "x" * long),
                           ("blanks", SOUND + " " * long + "5 gibberish"),
                           ("a list", SOUND.replace("after 0", "after " + "0," * (long // 2) + "0")),
                           ("accesses", SOUND + op + "read x " * (long // 10) + "bad"),
                           ("a shape", SOUND.replace("4x4", "x".join(["1"] * (long // 10)) + "x")),
                           ("a string", SOUND + op + '"' + "y" * long),
                           ("a name", SOUND.replace("lane run", "lane " + "r" * (long // 10), 1))):
            self.refused(text, what)

    def test_bytes_that_are_no_text(self):
        for what, data in (("a zero byte", SOUND.replace("attn", "at\0tn").encode()),
                           ("zero bytes alone", b"\0" * 1000),
                           ("noise", random.Random(1).randbytes(4096)),
                           ("latin-1", SOUND.replace("attn", "\xe9").encode("latin-1"))):
            with open(self.path("s.sched"), "wb") as f:
                f.write(data)
            done = subprocess.run([binary(), "simulate", "s.sched", "--no-db"], cwd=self.folder, env=clean_environment(),
                                  capture_output=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 3, (what, done.stderr[:300]))
            self.assertTrue(done.stderr.startswith(b"error: "), what)

    def test_files_cut_short(self):
        for size in range(0, len(SOUND), 7):
            result = self.tool("simulate", self.write("s.sched", SOUND[:size]), "--no-db")
            # Cut behind a line it may be sound, or hang without its group.
            self.assertIn(result.returncode, (0, 3, 5), (size, result.stderr))
            self.assertNotIn("internal", result.stderr)
        with open(GPT2, encoding="utf-8") as f:
            text = f.read().rstrip()
        for size in range(0, len(text), 23):
            self.refused(text[:size], f"{size} characters of JSON", "s.json")

    def test_json_without_measure(self):
        deep = 1_000_000
        for what, text in (("arrays", "[" * deep),
                           ("objects", '{"a":' * deep),
                           ("closed arrays", '{"model": ' + "[" * deep + "]" * deep + "}"),
                           ("one line", '{"format": 1, "name": "' + "x" * 10_000_000 + '", "nothing": 1}'),
                           ("a number", '{"format": ' + "9" * 1_000_000 + "}"),
                           ("a key", '{"' + "k" * 1_000_000 + '": 1}'),
                           ("keys", "{" + ",".join(f'"k{i}": {i}' for i in range(100_000)) + "}")):
            self.refused(text, what, "s.json")


class Magnitudes(Case):
    def test_times_beyond_the_clock_are_refused_not_wrapped(self):
        for value in ("machine.intra_node.efficiency=1e-300", "machine.device.memory_bandwidth_gb_per_s=1e-300"):
            result = self.expect(3, "simulate", GPT2, "--no-db", "--set", value)
            self.assertIn("[TIME]", result.stderr)
            self.assertRegex(result.stderr, r"the longest op takes [\d.e+]+ s: `\d+ (send|compute)")

    def test_more_ops_than_memory_holds_are_refused_at_once(self):
        limited = ["prlimit", f"--as={4 << 30}"]
        if self.tool("version", prefix=limited).returncode != 0:
            self.skipTest("a sanitizer needs the address space")
        start = time.monotonic()
        for verb in (["simulate", "--no-db"], ["simulate", "--dry-run"], ["show", "--ops"]):
            result = self.expect(6, verb[0], GPT2, *verb[1:], "--set", "batch.micro_batches=1000000", prefix=limited)
            self.assertRegex(result.stderr, r"about 64 000 000 ops takes about [\d.]+ GiB, but this computer has [\d.]+ [MG]iB free")
        self.assertLess(time.monotonic() - start, 30)

    def test_bytes_and_lanes_beyond_what_can_be_counted(self):
        head = "mesh pp 1\nprogram p ranks all\n  lane c compute\n"
        buffers = "".join(f"  buffer b{i} device 1024TiB resident\n" for i in range(9000))  # more than int64 together
        path = self.write("s.sched", head + buffers + "  0 compute F lane c time 1ms write b0\n")
        self.assertIn("[RANGE]", self.expect(3, "simulate", path, "--no-db", "--machine", "h200_node").stderr)
        lanes = "".join(f"  lane l{i} compute\n" for i in range(60000))
        path = self.write("s.sched", head + lanes + "  0 compute F lane c time 1ms\n")
        self.assertIn("too many lanes", self.expect(3, "simulate", path, "--no-db").stderr)

    def test_a_key_without_effect_is_warned_of(self):
        self.assertIn("assume.overflow changes nothing", self.expect(0, "simulate", GPT2, "--no-db", "--set", "assume.overflow=true").stderr)

    def test_sizes_out_of_range(self):
        for value in ("batch.micro_batches=1e12", "model.layers=1e9", "mesh.pp=1e9", "batch.sequence_length=1e12", "run.steps=1e9",
                      "machine.device.memory_gib=0", "machine.intra_node.efficiency=0", "batch.micro_batch_size=-1"):
            self.assertIn("[OVERRIDE]", self.expect(2, "simulate", GPT2, "--no-db", "--set", value).stderr)
        self.assertIn("4000000 ranks", self.expect(3, "simulate", GPT2, "--no-db", "--set", "mesh.dp=1000000").stderr)


class Answers(Case):
    def test_the_seed_is_kept(self):
        document = self.run_json(0, "simulate", GPT2, "--seed", "7")
        self.assertEqual((document["run"]["seed"], self.rows("SELECT seed FROM runs")), (7, [(7,)]))
        self.assertEqual(self.run_json(0, "simulate", GPT2, "--no-db")["run"]["seed"], 1)
        self.expect(2, "simulate", GPT2, "--seed", "-3")

    def test_tokens_of_one_rank_and_of_all(self):
        summary = self.run_json(0, "simulate", GPT2, "--no-db")["summary"]
        self.assertAlmostEqual(summary["tokens_per_second"], 8 * 4 * 1024 / (summary["step_time_ns"] * 1e-9), places=3)
        self.assertAlmostEqual(summary["tokens_per_second_per_rank"] * 4, summary["tokens_per_second"], places=3)

    def test_reserved_beyond_capacity_is_a_warning_on_screen_in_json_and_in_the_store(self):
        peaks = self.run_json(0, "simulate", GPT2, "--no-db")["summary"]
        between = (peaks["peak_active_bytes"] + peaks["peak_reserved_bytes"]) / 2 / 2**30
        result = self.expect(0, "simulate", GPT2, "--json", "--set", f"machine.device.memory_gib={between}")
        self.assertIn("fits only by flushing the allocator's cache", result.stderr)
        self.assertIn("flushing", json.loads(result.stdout)["warnings"][0])
        self.assertEqual(self.rows("SELECT level FROM diagnostics"), [("warning",)])

    def test_a_folded_run_shows_every_simulated_rank_once(self):
        self.expect(0, "simulate", BIG, "--allow-oom", "--trace", "summary")
        lines = self.expect(0, "runs", "show", "1").stdout.splitlines()
        self.assertEqual([line.split()[1] for line in lines[-17:-1]], [f"pp{stage}" for stage in range(16)])
        self.assertIn("2032 other ranks do the same", lines[-1])

    def test_remedies_name_commands_that_work(self):
        self.expect(0, "simulate", GPT2)
        self.assertIn("`steptwin runs list`", self.expect(2, "runs", "show", "99").stderr)
        self.expect(0, "runs", "list")
        self.assertIn("Is a directory", self.expect(6, "trace", "export", "1", "-o", ".").stderr)
        self.expect(2, "trace", "export", "1", "-o", "x", "--ranks", "99")


class DamagedDatabases(Case):
    READERS = [["runs", "list"], ["runs", "show", "1"], ["query", "--name", "peak_memory", "1"], ["trace", "export", "1", "--format", "csv", "-o", "-"],
               ["trace", "export", "1", "-o", "-"]]

    def setUp(self):
        super().setUp()
        self.expect(0, "simulate", GPT2, "--db", "good.db")
        connection = sqlite3.connect(self.path("good.db"))
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        with open(self.path("good.db"), "rb") as f:
            self.good = f.read()

    def damaged(self, data):
        for ending in ("-wal", "-shm"):
            if os.path.exists(self.path("bad.db" + ending)):
                os.remove(self.path("bad.db" + ending))
        with open(self.path("bad.db"), "wb") as f:
            f.write(data)
        return ["--db", "bad.db"]

    def test_cut_short(self):
        for size in (50, 100, 4096, len(self.good) // 2):
            where = self.damaged(self.good[:size])
            for verb in (*self.READERS, ["simulate", GPT2], ["runs", "check"], ["query", "select count(*) from spans"]):
                self.assertEqual(self.code(verb + where), 6, (size, verb))

    def test_flipped_bits_end_well_or_with_6(self):
        for seed in range(30):
            rng = random.Random(seed)
            data = bytearray(self.good)
            for _ in range(1 if seed < 10 else 60):
                data[rng.randrange(100 if seed < 5 else len(data))] ^= 1 << rng.randrange(8)
            where = self.damaged(bytes(data))
            for verb in self.READERS:
                # Run 1 may be what was damaged: then it is unknown (2), as any id that is not there.
                self.assertIn(self.code(verb + where), (0, 2, 6), (seed, verb))
            self.assertIn(self.code(["runs", "check", *where]), (0, 1, 6), seed)

    def code(self, args):
        """Exit code; output may be any bytes."""
        done = subprocess.run([binary(), *args], cwd=self.folder, env=clean_environment(), capture_output=True, timeout=120, check=False)
        if done.returncode == 2:
            self.assertIn(b"there is no run", done.stderr)
        return done.returncode


if __name__ == "__main__":
    unittest.main()
