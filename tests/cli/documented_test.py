"""What is documented is true: SCHEMA.md names every view and column; its commands, and the canned queries, run in the stock sqlite3
shell (specs/ux.md 14.15)."""
import json
import os
import re
import shutil
import subprocess
import unittest

from support import GPT2, SOURCE, Case, binary, clean_environment

VALUES = {"reserved", "total"}  # in backquotes, but no columns


def schema_page():
    with open(os.path.join(SOURCE, "traces", "SCHEMA.md"), encoding="utf-8") as f:
        return f.read()


class Schema(Case):
    def setUp(self):
        super().setUp()
        self.expect(0, "simulate", GPT2)

    def columns_of(self, view):
        return {row[1] for row in self.rows(f"PRAGMA table_info({view})")}

    def test_the_page_names_every_view_and_column_and_no_other(self):
        page = {view: set(re.findall(r"`(\w+)`", columns)) - VALUES
                for view, columns in re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", schema_page(), re.M)}
        views = {row[0] for row in self.rows("SELECT name FROM sqlite_schema WHERE type = 'view'")}
        self.assertEqual(set(page), views)
        for view in views:
            self.assertEqual(page[view], self.columns_of(view), view)

    def test_the_page_names_every_table(self):
        tables = {row[0] for row in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")}
        section = schema_page().split("## Tables")[1].split("##")[0].split("\n\n")[1]
        self.assertEqual(set(re.findall(r"`(\w+)`", section)), tables)

    def test_its_commands_run(self):
        commands = [line[4:] for line in schema_page().splitlines() if line.startswith("    ") and line.strip()]
        self.assertGreaterEqual(len(commands), 4)
        for command in commands:
            if command.startswith("SELECT"):
                command = f'sqlite3 steptwin.db "{command}"'
            command = re.sub(r"^steptwin ", f"'{binary()}' ", command)
            done = subprocess.run(command, shell=True, cwd=self.folder, env=clean_environment(), capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr.replace("database ./steptwin.db\n", "")), (0, ""), command)

    def test_a_copy_made_while_in_use_is_whole(self):
        subprocess.run(["sqlite3", "steptwin.db", ".backup copy.db"], cwd=self.folder, check=True)
        self.sound("copy.db")

    def test_canned_queries_run_in_the_stock_shell(self):
        self.assertIsNotNone(shutil.which("sqlite3"))
        for row in json.loads(self.expect(0, "query", "--list", "--json").stdout)["rows"]:
            sql = self.expect(0, "query", "--show", row["name"]).stdout
            script = f".headers on\n.mode csv\n.parameter set ?1 1\n{sql.rstrip().rstrip(';')};\n"
            shell = subprocess.run(["sqlite3", "-batch", "-bail", "steptwin.db"], input=script, cwd=self.folder,
                                   capture_output=True, text=True, check=False)
            self.assertEqual((shell.returncode, shell.stderr), (0, ""), row["name"])
            own = self.expect(0, "query", "--name", row["name"], "1", "--format", "csv").stdout
            if shell.stdout:
                self.assertEqual(len(shell.stdout.splitlines()), len(own.splitlines()), row["name"])


if __name__ == "__main__":
    unittest.main()
