#!/usr/bin/env python3
"""End-to-end tests of the steptwin binary.

usage: run_cli_tests.py --steptwin BINARY [--update] [NAME...]      NAME = basics, outcomes, ...; default all of tests/cli/*_test.py
"""
import argparse
import glob
import importlib
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steptwin", required=True)
    parser.add_argument("--update", action="store_true", help="rewrite the golden files")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    os.environ["STEPTWIN"] = os.path.abspath(arguments.steptwin)
    if arguments.update:
        os.environ["STEPTWIN_UPDATE_GOLDEN"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, HERE)
    names = arguments.names or sorted(os.path.basename(f)[: -len("_test.py")] for f in glob.glob(os.path.join(HERE, "*_test.py")))
    suite = unittest.TestSuite()
    for name in names:
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(name + "_test")))
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    return 0 if result.wasSuccessful() and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
