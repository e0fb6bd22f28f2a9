"""Files and databases that fail (specs/ux.md 14.11, 14.14): one message with the reason, the stated exit code, nothing left behind."""
import os
import shutil
import sqlite3
import unittest

from support import GPT2, Case

NOBODY = 65534


class Inputs(Case):
    def test_missing_directory_and_unreadable_files(self):
        os.mkdir(self.path("folder.json"))
        for name, reason in (("missing.json", "No such file or directory"), ("folder.json", "Is a directory"), ("missing.sched", "No such file or directory")):
            result = self.expect(6, "simulate", name)
            self.assertIn(reason, result.stderr)
            self.assertIn(name, result.stderr)
            self.assertEqual(result.stderr.count("error:"), 1)
        self.assertEqual(self.files(), ["folder.json"])

    def test_empty_and_binary_files_are_bad_input(self):
        self.write("empty.json", "")
        with open(self.path("binary.json"), "wb") as f:
            f.write(bytes(range(256)) * 20)
        shutil.copy(self.path("binary.json"), self.path("binary.sched"))
        for name in ("empty.json", "binary.json", "binary.sched"):
            self.expect(3, "simulate", name, "--no-db")


class Unprivileged(Case):
    """As an unprivileged user: CI is root, whom no permission bit stops."""

    def as_nobody(self, *args):
        prefix = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if os.geteuid() == 0 else []
        return self.tool(*args, prefix=prefix)

    def setUp(self):
        super().setUp()
        self.scenario = self.path("s.json")
        shutil.copy(GPT2, self.scenario)
        os.chmod(self.scenario, 0o644)
        if os.geteuid() == 0 and shutil.which("setpriv") is None:
            self.skipTest("needs setpriv")

    def test_a_read_only_directory(self):
        os.chmod(self.folder, 0o555)
        self.addCleanup(os.chmod, self.folder, 0o755)
        before = self.files()
        result = self.as_nobody("simulate", "s.json")
        self.assertEqual(result.returncode, 6, result.stderr)
        self.assertIn("steptwin.db", result.stderr)
        self.assertRegex(result.stderr, "Permission denied|unable to open|Read-only")
        self.assertEqual(self.as_nobody("simulate", "s.json", "--no-db").returncode, 0)
        self.assertEqual(self.files(), before)

    def test_results_can_be_read_where_nothing_can_be_written(self):
        self.expect(0, "simulate", "s.json")
        os.chmod(self.path("steptwin.db"), 0o444)
        os.chmod(self.folder, 0o555)
        self.addCleanup(os.chmod, self.folder, 0o755)
        result = self.as_nobody("query", "select count(*) as n from runs", "--format", "csv")
        self.assertEqual((result.returncode, result.stdout), (0, "n\n1\n"), result.stderr)
        self.assertEqual(self.as_nobody("simulate", "s.json").returncode, 6)
        result = self.as_nobody("trace", "export", "1", "-o", "t.pftrace")
        self.assertEqual(result.returncode, 6)
        self.assertIn("Permission denied", result.stderr)

    def test_an_unreadable_scenario(self):
        os.chmod(self.scenario, 0o000)
        result = self.as_nobody("simulate", "s.json", "--no-db")
        self.assertEqual(result.returncode, 6)
        self.assertIn("Permission denied", result.stderr)


class Databases(Case):
    def test_a_foreign_database_is_refused_untouched(self):
        connection = sqlite3.connect(self.path("other.db"))
        connection.execute("CREATE TABLE t(x)")
        connection.commit()
        connection.close()
        with open(self.path("other.db"), "rb") as f:
            before = f.read()
        for args in (["simulate", GPT2], ["query", "select 1"], ["runs", "gc"]):
            result = self.expect(6, *args, "--db", "other.db")
            self.assertIn("other.db", result.stderr)
        with open(self.path("other.db"), "rb") as f:
            self.assertEqual(f.read(), before)

    def test_a_newer_database_is_refused_with_help(self):
        self.expect(0, "simulate", GPT2)
        connection = sqlite3.connect(self.path("steptwin.db"))
        connection.execute("PRAGMA user_version = 999")
        connection.commit()
        connection.close()
        self.assertIn("newer", self.expect(6, "simulate", GPT2).stderr)

    def test_no_database_to_read(self):
        for args in (["runs", "list"], ["runs", "gc"], ["query", "select 1"], ["trace", "export", "@last", "-o", "x"]):
            self.expect(6, *args)
        self.assertEqual(self.files(), [])

    def test_a_text_file_and_a_directory(self):
        self.write("notes.txt", "no database at all, but long enough to be read as one. " * 50)
        os.mkdir(self.path("d"))
        for name in ("notes.txt", "d", "/dev/full", "/dev/null", "no/such/folder/x.db"):
            result = self.expect(6, "simulate", GPT2, "--db", name)
            self.assertIn(name, result.stderr)

    def test_the_flag_beats_the_environment_beats_the_default(self):
        self.expect(0, "simulate", GPT2, env={"STEPTWIN_DB": "env.db"})
        self.expect(0, "simulate", GPT2, "--db", "flag.db", env={"STEPTWIN_DB": "env.db"})
        self.assertEqual([f for f in self.files() if f.endswith(".db")], ["env.db", "flag.db"])
        self.assertEqual(self.rows("SELECT count(*) FROM runs", "env.db"), [(1,)])


if __name__ == "__main__":
    unittest.main()
