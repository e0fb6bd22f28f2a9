#!/usr/bin/env python3
"""The CUDA backend of steptwin beside eager PyTorch on one GPU: alternating rounds of the same training step, medians, spread.

usage: cuda_speed.py CUDA_SPEED_SERVER SCENARIO.json TEXT [--rounds N] [--steps N]
Both programs stay up and take turns; each warms up in every round. Prints the rounds' medians and the ratio of their medians: > 1 means that steptwin is
faster.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def start(command):
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("server")
    parser.add_argument("scenario")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    eager = start([sys.executable, str(HERE / "eager_baseline.py"), args.scenario, "--steps", str(args.steps), "--warmup", "1", "--serve"])
    own = start([args.server, args.scenario, args.text, str(args.rounds), str(args.steps)])
    theirs = []
    for _ in range(args.rounds):
        own.stdout.readline()  # "ready": its GPU is idle
        go(eager)
        theirs.append(statistics.median(json.loads(eager.stdout.readline())["step_ms"]))
        go(own)
    eager.stdin.close()
    ours = [statistics.median(json.loads(own.stdout.readline())) for _ in range(args.rounds)]
    for number, (a, b) in enumerate(zip(theirs, ours)):
        print(f"round {number + 1:2}: eager {a:8.2f} ms, steptwin {b:8.2f} ms")
    for name, values in (("eager PyTorch", theirs), ("steptwin     ", ours)):
        print(f"{name}: median {statistics.median(values):.2f} ms, {min(values):.2f} to {max(values):.2f}")
    spread = max((max(v) - min(v)) / statistics.median(v) for v in (ours, theirs))
    print(f"{args.scenario}: step rate of steptwin / eager {statistics.median(theirs) / statistics.median(ours):.3f} (spread of rounds {100 * spread:.1f} %)")


if __name__ == "__main__":
    main()
