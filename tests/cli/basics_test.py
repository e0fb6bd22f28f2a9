"""Help, streams, colour, usage errors (specs/ux.md 2, 14.3-14.6, 14.8)."""
import json
import os
import pty
import select
import signal
import subprocess
import time
import unittest

from support import GOLDEN, GPT2, Case, binary, clean_environment

USAGE_ERRORS = [
    ["simulat", "x.json"], ["sweep", "x.json"], ["--nonsense"], ["simulate"], ["simulate", "a.json", "b.json"], ["simulate", "a.json", "--step", "3"],
    ["simulate", "a.json", "--steps", "0"], ["simulate", "a.json", "--steps", "-3"], ["simulate", "a.json", "--engine", "rplay"],
    ["simulate", "a.json", "--set", "novalue"], ["simulate", "a.json", "--db"], ["simulate", "a.json", "--db", "a", "--db", "b"],
    ["show", "a.json", "--order", "--ops"], ["show", "a.json", "--rank", "0"], ["query"], ["query", "--name", "nothing_like_it"],
    ["runs"], ["runs", "lst"], ["runs", "show"], ["trace", "export"], ["trace", "exprt", "1"], ["help", "simulat"],
]


class Help(Case):
    def test_help_in_every_spelling_exits_0_on_stdout(self):
        for args in (["help"], ["--help"], ["-h"], ["help", "simulate"], ["simulate", "--help"], ["simulate", "-h"], ["runs", "-h"]):
            result = self.expect(0, *args)
            self.assertIn("example", result.stdout)
            self.assertEqual(result.stderr, "")

    def test_bare_steptwin_helps_on_stderr_and_exits_2(self):
        result = self.expect(2)
        self.assertEqual(result.stdout, "")
        self.assertIn("usage: steptwin COMMAND", result.stderr)

    def test_version(self):
        self.assertRegex(self.expect(0, "--version").stdout, r"^steptwin \d+\.\d+\.\d+ \(.+\)\n$")
        self.assertEqual(self.expect(0, "version").stdout, self.expect(0, "--version").stdout)
        self.assertEqual(json.loads(self.expect(0, "version", "--json").stdout)["schema"], "steptwin.version/1")

    def test_doctor(self):
        report = json.loads(self.expect(0, "doctor", "--json").stdout)
        self.assertIn("h200_node", report["machines"])
        self.assertRegex(report["sqlite"], r"^3\.\d+")
        self.assertNotIn("unknown", report["database_file_system"])
        self.assertEqual(self.files(), [])


class UsageErrors(Case):
    def test_messages_are_the_golden_ones(self):
        text = ""
        for args in USAGE_ERRORS:
            result = self.expect(2, *args)
            self.assertEqual(result.stdout, "")
            text += "$ steptwin " + " ".join(args) + "\n" + result.stderr + "\n"
        golden = os.path.join(GOLDEN, "usage_errors.txt")
        if os.environ.get("STEPTWIN_UPDATE_GOLDEN"):
            with open(golden, "w", encoding="utf-8") as f:
                f.write(text)
        with open(golden, encoding="utf-8") as f:
            self.assertEqual(text, f.read())

    def test_a_wrong_override_exits_2_and_names_the_nearest(self):
        result = self.expect(2, "simulate", GPT2, "--set", "batch.micro_batch=16", "--no-db")
        self.assertIn("micro_batches", result.stderr)
        self.expect(2, "simulate", GPT2, "--set", "mesh.pp=\"four\"", "--no-db")
        self.expect(2, "validate", GPT2, "--set", "mesh.pipeline=4")

    def test_an_unknown_run_exits_2(self):
        self.expect(0, "simulate", GPT2)
        for word in ("99", "@last-exec", "zzzz"):
            self.expect(2, "runs", "show", word)
        self.expect(2, "query", "select nothing from nowhere")


class Streams(Case):
    def test_results_on_stdout_only_database_on_stderr(self):
        result = self.expect(0, "simulate", GPT2)
        self.assertIn("step time", result.stdout)
        self.assertIn("./steptwin.db", result.stderr)
        self.assertNotIn("steptwin.db", result.stdout)

    def test_json_parses_whatever_happens_to_stderr(self):
        for extra in ([], ["--no-progress"], ["-q"]):
            json.loads(self.expect(0, "simulate", GPT2, "--json", *extra).stdout)
        closed = subprocess.run(f"'{binary()}' simulate '{GPT2}' --json 2>&-", shell=True, cwd=self.folder, env=clean_environment(), text=True,
                                stdout=subprocess.PIPE, check=True)
        json.loads(closed.stdout)

    def test_a_closed_stdout_is_quiet_and_harms_nothing(self):
        closed = subprocess.run(f"'{binary()}' simulate '{GPT2}' >&-", shell=True, cwd=self.folder, env=clean_environment(), text=True,
                                stderr=subprocess.PIPE, check=False)
        self.assertEqual(closed.returncode, 0, closed.stderr)
        self.sound()

    def test_a_reader_that_leaves_is_quiet(self):
        self.expect(0, "simulate", GPT2)
        sql = "with recursive n(i) as (select 1 union all select i + 1 from n where i < 300000) select i, 'some text to fill the pipe' from n"
        for form in ("table", "csv", "json", "jsonl", "md"):
            head = subprocess.run(["bash", "-c", f"set -o pipefail; '{binary()}' -q query \"{sql}\" --format {form} | head -1"], cwd=self.folder,
                                  env=clean_environment(), text=True, capture_output=True, check=False)
            self.assertEqual((head.returncode, head.stderr), (0, ""))

    def test_a_full_device_exits_6_with_the_reason(self):
        for args in (["simulate", GPT2], ["version"], ["help"], ["show", GPT2], ["doctor"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = self.tool(*args, stdout=full)
            self.assertEqual(result.returncode, 6)
            self.assertIn("No space left on device", result.stderr)

    def test_stdin_is_named_in_positions(self):
        with open(GPT2, encoding="utf-8") as f:
            self.expect(0, "simulate", "-", "--no-db", stdin=f.read())
        result = self.expect(3, "simulate", "-", "--no-db", stdin='{\n  "format": 1,\n  "oops": 2\n}\n')
        self.assertIn("<stdin>:3:3", result.stderr)


def in_a_terminal(args, folder, seconds=60, **env):
    """Output of the tool when all its streams are a terminal; Ctrl-C after so many seconds."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(binary(), [binary(), *args], clean_environment(**{"TERM": "xterm", **env}))
    data = b""
    end = time.monotonic() + seconds
    while True:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGINT)
            end += 60
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
    os.waitpid(pid, 0)
    os.close(terminal)
    return data


class Progress(Case):
    LONG = ["simulate", GPT2, "--no-db", "--trace", "summary", "--set", "batch.micro_batches=2000", "--steps", "10000"]

    def test_a_terminal_sees_it_move(self):
        seen = in_a_terminal(self.LONG, self.folder, seconds=2)
        self.assertRegex(seen, rb"\r\x1b\[Ksimulating  \d+ %  [\d.]+ m?s simulated  [\d.e+-]+ M ops/s  ETA \d+ s")
        self.assertLessEqual(seen.count(b"simulating"), 25)  # at most ten a second

    def test_not_when_unwanted(self):
        for extra, env in ((["--no-progress"], {}), (["-q"], {}), ([], {"TERM": "dumb"})):
            self.assertNotIn(b"simulating", in_a_terminal([*self.LONG, *extra], self.folder, seconds=1, **env))


class Colour(Case):
    WRONG = ["simulate", "no-such-file.json"]

    def test_a_pipe_gets_no_escape_bytes(self):
        for args in (self.WRONG, ["simulate", GPT2], ["runs", "list"], ["help"]):
            result = self.tool(*args)
            self.assertNotIn("\x1b", result.stdout + result.stderr)

    def test_a_terminal_gets_colour_unless_told_otherwise(self):
        self.assertIn(b"\x1b[", in_a_terminal(self.WRONG, self.folder))
        self.assertIn(b"\x1b[", in_a_terminal(self.WRONG, self.folder, NO_COLOR=""))
        self.assertNotIn(b"\x1b", in_a_terminal(self.WRONG, self.folder, NO_COLOR="1"))
        self.assertNotIn(b"\x1b", in_a_terminal(self.WRONG, self.folder, TERM="dumb"))
        self.assertNotIn(b"\x1b", in_a_terminal([*self.WRONG, "--color", "never"], self.folder))

    def test_no_escape_byte_of_a_file_reaches_the_terminal(self):
        self.write("s.json", '{"format": 1, "name": "\\u001b[31mred\\u0007", "x\x1b[32m": 1}')
        self.assertNotIn("\x1b", self.expect(3, "simulate", "s.json").stderr)
        with open(GPT2, encoding="utf-8") as f:
            self.write("s.json", f.read().replace('"name": "gpt2_pp4"', '"name": "\\u001b[31mred\\u0007"'))
        for args in (["simulate", "s.json"], ["simulate", "s.json", "--dry-run"], ["runs", "list"], ["show", "s.json"]):
            result = self.expect(0, *args)
            self.assertNotIn("\x1b", result.stdout + result.stderr)

    def test_forced_colour(self):
        self.assertIn("\x1b[", self.tool(*self.WRONG, "--color", "always").stderr)
        self.assertIn("\x1b[", self.tool(*self.WRONG, env={"CLICOLOR_FORCE": "1"}).stderr)

    def test_ascii_where_the_locale_is_not_utf8(self):
        self.expect(0, "simulate", GPT2, "--no-db", env={"LC_ALL": "C"}).stdout.encode("ascii")
        self.expect(0, "simulate", GPT2, "--no-db", "--ascii", env={"LC_ALL": "C.UTF-8"}).stdout.encode("ascii")


if __name__ == "__main__":
    unittest.main()
