#!/usr/bin/env python3
"""From nothing to the first token, beside llama.cpp: the whole life of both programs, in turns.

    LLAMA_BENCH=… python3 tests/compare/first_token.py MODEL [--backplane PATH] [--prompt 512] [--threads 2] [--rounds 5]

Ours is `backplane run` with so many token ids and one token to generate; llama.cpp's is `llama-bench` without warm-up that reads as many tokens and generates none.
Both load the model from a file that the system has in memory after the first turn, which doesn't count. Standard library only.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def took(command):
    """Seconds of a program's whole life."""
    begun = time.perf_counter()
    done = subprocess.run([str(part) for part in command], capture_output=True)
    seconds = time.perf_counter() - begun
    if done.returncode != 0:
        sys.exit(f"error: {command[0]}: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--backplane", type=Path, default=REPOSITORY / "target/dist/backplane", help="the program [default: the staged one]")
    parser.add_argument("--anchor", type=Path, default=os.environ.get("LLAMA_BENCH"), help="llama-bench [default: LLAMA_BENCH]")
    parser.add_argument("--prompt", type=int, default=512, help="tokens read [default: 512]")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if not arguments.anchor:
        sys.exit("error: no llama-bench: build it by tests/compare/build_anchor.py, and name it by --anchor or LLAMA_BENCH")
    ids = ",".join(str(100 + at % 900) for at in range(arguments.prompt))
    ours = [arguments.backplane, "run", arguments.model, "--tokens", ids, "--backend", "cpu", "--threads", arguments.threads, "--max-tokens", 1]
    theirs = [arguments.anchor, "-m", arguments.model, "-p", arguments.prompt, "-n", 0, "-r", 1, "-t", arguments.threads, "--no-warmup"]
    rounds = [(took(ours), took(theirs)) for _ in range(arguments.rounds + 1)][1:]
    mine, its = ([pair[side] * 1e3 for pair in rounds] for side in (0, 1))
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"{arguments.model.stem}, {arguments.prompt} tokens: backplane {statistics.median(mine):.0f} ms ({min(mine):.0f} to {max(mine):.0f}), "
          f"llama-bench {statistics.median(its):.0f} ms ({min(its):.0f} to {max(its):.0f}): {ratio:.2f} of its time")


if __name__ == "__main__":
    main()
