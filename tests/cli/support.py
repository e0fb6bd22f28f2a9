"""What the end-to-end tests share. Python 3 standard library only. Each test runs in a fresh, empty current directory."""
import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.dirname(os.path.dirname(HERE))
SCENARIOS = os.path.join(SOURCE, "scenarios")
GOLDEN = os.path.join(SOURCE, "tests", "golden", "cli")
GPT2 = os.path.join(SCENARIOS, "gpt2_pp4.json")



def binary():
    return os.environ["STEPTWIN"]


def clean_environment(**more):
    keep = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH") or k.startswith(("ASAN", "UBSAN", "TSAN"))}
    keep.update(more)
    return keep


class Case(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="steptwin-cli-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder, True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def tool(self, *args, env=None, stdin=None, stdout=subprocess.PIPE, timeout=120, prefix=()):
        """Runs steptwin; returns the finished process with text output."""
        return subprocess.run([*prefix, binary(), *args], cwd=self.folder, env=clean_environment(**(env or {})), input=stdin, stdout=stdout,
                              stderr=subprocess.PIPE, text=True, encoding="utf-8", timeout=timeout, check=False)

    def start(self, *args, env=None):
        return subprocess.Popen([binary(), *args], cwd=self.folder, env=clean_environment(**(env or {})), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, encoding="utf-8")

    def expect(self, code, *args, **more):
        result = self.tool(*args, **more)
        self.assertEqual(result.returncode, code, f"steptwin {' '.join(args)}\n--- stdout\n{result.stdout}\n--- stderr\n{result.stderr}")
        return result

    def run_json(self, code, *args, **more):
        return json.loads(self.expect(code, *args, "--json", **more).stdout)

    def rows(self, sql, database="steptwin.db"):
        connection = sqlite3.connect(self.path(database), timeout=30)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()

    def sound(self, database="steptwin.db"):
        self.assertEqual(self.rows("PRAGMA integrity_check", database), [("ok",)])
        self.expect(0, "runs", "check", "--db", database)

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return
            time.sleep(0.01)
        self.fail("waited too long")

    def files(self):
        return sorted(os.listdir(self.folder))
