#!/usr/bin/env python3
"""Fills, or checks, the console blocks of README.md with what the tool really prints.

readme.py --steptwin BINARY            rewrites README.md
readme.py --steptwin BINARY --check    exit 1 when README.md and the tool differ

Every line "$ steptwin ..." of a ```console block is run in order, in the source directory, with one fresh database; the lines
below it are its standard output and, for a command that fails, its standard error.
"""
import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def output_of(command, binary, database):
    words = shlex.split(command)
    assert words[0] == "steptwin", command
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STEPTWIN_")}
    environment.update(STEPTWIN_DB=database, LC_ALL="C.UTF-8", NO_COLOR="1", COLUMNS="100")
    done = subprocess.run([binary, *words[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout if done.returncode == 0 else done.stdout + done.stderr.replace(database, "./steptwin.db")
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
    return [line for line in lines if not line.startswith("not stored (")]  # holds a time


def filled(text, binary):
    out, inside = [], False
    with tempfile.TemporaryDirectory() as folder:
        database = os.path.join(folder, "steptwin.db")
        for line in text.split("\n"):
            if line.startswith("```"):
                inside = line == "```console"
                out.append(line)
            elif not inside:
                out.append(line)
            elif line.startswith("$ "):
                out.append(line)
                out.extend(output_of(line[2:], binary, database))
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steptwin", required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    path = ROOT / "README.md"
    old = path.read_text(encoding="utf-8")
    new = filled(old, os.path.abspath(options.steptwin))
    if not options.check:
        path.write_text(new, encoding="utf-8")
        return 0
    if new == old:
        return 0
    for a, b in zip(old.split("\n"), new.split("\n")):
        if a != b:
            print(f"README.md says:  {a}\nthe tool prints: {b}", file=sys.stderr)
            break
    print("README.md is out of date: run scripts/readme.py --steptwin build/steptwin", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
