#!/usr/bin/env python3
"""Compares `backplane bench` with llama.cpp's own `llama-bench` on this machine, in one run.

    python3 tests/compare/llama_bench.py MODEL [--threads 1,2] [--rounds 5] [--anchor PATH] [--backplane PATH]

Both programs take turns, A B A B, with the same threads and sizes: a prompt of --prompt tokens is read, and --generate tokens are
generated from one token. A ratio is that of one round; its median and half of its middle half's range are printed, so that a machine's
moods, which meet both, cancel out. The anchor is the path given, or LLAMA_BENCH; `build_anchor.py` builds it. Where there is none, the
shares of read bandwidth that llama.cpp was once measured to reach stand in. Standard library only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# Share of the read bandwidth at the model's size that llama.cpp's decode reached, by threads: build 11434, native, Release, on a quiet
# machine with two cores, AVX-512 VNNI and AMX.
ONCE_MEASURED = {
    "SmolLM2-135M-Instruct.Q4_1": {1: 0.61, 2: 0.52},
    "gemma-3-270m.Q4_K_M": {1: 0.77, 2: 0.63},
}


def fail(message):
    """Ends the program with one line."""
    sys.exit(f"error: {message}")


def run(command):
    """Runs a program to its end; its JSON, and the most memory it held at once in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)
        except OSError as error:
            fail(f"{command[0]}: {error.strerror}")
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except KeyboardInterrupt:
            child.terminate()
            sys.exit(130)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, complaint = out.read().decode(errors="replace"), err.read().decode(errors="replace").strip()
    if child.returncode != 0:
        last = complaint.splitlines()[-1] if complaint else "no message"
        fail(f"{command[0]}: exit code {child.returncode}: {last}")
    try:
        return json.loads(text), usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    except ValueError:
        fail(f"{command[0]}: expected JSON, got {text[:80]!r}")


def ours(program, given, threads):
    """One round of `backplane bench`."""
    sizes = ["--prompt", given.prompt, "--generate", given.generate]
    found, _ = run([program, "bench", given.model, *sizes, "--threads", threads, "--batch", 1, "--repeat", 1, "--json", "--backend", given.backend])
    row = found["runs"][0]
    decode = row["decode"][0]
    return {
        "prefill": row["prefill"]["tokens_per_s"]["median"],
        "decode": decode["tokens_per_s"]["median"],
        # Its own reading: the whole process holds the buffer of the bandwidth too.
        "memory": row["peak_memory_bytes"],
        "limits": row["limits"],
        "runs": row["runs"],
    }


def theirs(program, given, threads):
    """One round of `llama-bench`."""
    found, memory = run([program, "-m", given.model, "-p", given.prompt, "-n", given.generate, "-t", threads, "-r", 1, "-o", "json"])
    rates = {(test["n_prompt"], test["n_gen"]): test["avg_ts"] for test in found}
    try:
        prefill, decode = rates[(given.prompt, 0)], rates[(0, given.generate)]
    except KeyError:
        fail(f"{program}: expected tests of {given.prompt} and {given.generate} tokens, got {sorted(rates)}")
    return {"prefill": prefill, "decode": decode, "memory": memory, "build": found[0].get("build_number")}


def middle(values):
    """Median, and half of the range of the middle half."""
    values = sorted(values)
    if len(values) < 2:
        return values[0], 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return statistics.median(values), (high - low) / 2


def counts(text):
    """Whole numbers from 1, separated by commas, each once."""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers separated by commas") from None
    if min(values) < 1 or len(set(values)) != len(values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers from 1, each once")
    return values


def count(text):
    """One whole number from 1."""
    values = counts(text)
    if len(values) != 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected one number")
    return values[0]


def host(given):
    """The program backplane: the one given, of BACKPLANE_DIST, or staged."""
    if given.backplane:
        return given.backplane
    folder = os.environ.get("BACKPLANE_DIST") or REPOSITORY / "target" / "dist"
    program = Path(folder) / "backplane"
    if not program.is_file():
        fail(f"{program}: not there; run `cargo run --release -p backplane-tasks -- stage`, or give --backplane")
    return program


def median_of(rounds, key):
    """The median of one figure over all rounds, 0 where it is not told."""
    told = [one[key] for one in rounds if one[key] is not None]
    return statistics.median(told) if told else 0


def share_of_bandwidth(rate, mine):
    """Bytes of weights read per second, of those that this machine reached in the same round; None where it was not measured."""
    limits = mine["limits"]
    return rate * limits["token_bytes"] / limits["read_bytes_per_s"] if limits else None


def percent(shares):
    """The median of shares, for people."""
    known = [share for share in shares if share is not None]
    return f"{statistics.median(known):.0%}" if known else "-"


def compare(given, program, threads):
    """The rounds of one number of threads: a list of rows, and what llama.cpp's rounds were."""
    a, b = [], []
    for at in range(given.rounds):
        print(f"{threads} threads: round {at + 1} of {given.rounds}", file=sys.stderr)
        a.append(ours(program, given, threads))
        if given.anchor:
            b.append(theirs(given.anchor, given, threads))
    rows = []
    for figure in ["prefill", "decode"]:
        mine, spread = middle([one[figure] for one in a])
        row = {"threads": threads, "what": figure, "ours": mine, "ours_spread": spread / mine}
        if figure == "decode":
            row["ours_share"] = percent([share_of_bandwidth(one["decode"], one) for one in a])
            row["their_share"] = percent([share_of_bandwidth(other["decode"], one) for one, other in zip(a, b)])
        if b:
            row["theirs"], spread = middle([one[figure] for one in b])
            row["theirs_spread"] = spread / row["theirs"]
            row["ratio"], row["ratio_spread"] = middle([one[figure] / other[figure] for one, other in zip(a, b)])
        rows.append(row)
    return rows, {"threads": threads, "ours": median_of(a, "memory"), "theirs": median_of(b, "memory"), "runs": a[0]["runs"]}


def show(given, rows, memory):
    """The table, in Markdown."""
    name = given.model.stem
    print(f"{name}: medians of {given.rounds} rounds, prompt of {given.prompt}, {given.generate} generated")
    print()
    print("| what | threads | backplane, tokens/s | llama.cpp, tokens/s | ratio | of read bandwidth | llama.cpp's |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        mine = f"{row['ours']:.1f} ± {row['ours_spread']:.1%}"
        other = f"{row['theirs']:.1f} ± {row['theirs_spread']:.1%}" if "theirs" in row else "-"
        ratio = f"{row['ratio']:.2f} ± {row['ratio_spread']:.2f}" if "ratio" in row else "-"
        their_share = row.get("their_share", "-")
        once = ONCE_MEASURED.get(name, {}).get(row["threads"])
        if "theirs" not in row and row["what"] == "decode" and once:
            their_share = f"{once:.0%} (once)"
        print(f"| {row['what']} | {row['threads']} | {mine} | {other} | {ratio} | {row.get('ours_share', '-')} | {their_share} |")
    print()
    for one in memory:
        other = f", llama.cpp {one['theirs'] / 2**20:.0f} MiB" if one["theirs"] else ""
        print(f"{one['threads']} threads: peak memory {one['ours'] / 2**20:.0f} MiB{other}; runs {one['runs']}")
    if not given.anchor:
        print("\nllama-bench is not built here: its shares of read bandwidth are those that it once reached on another machine.")
        print("Build it with tests/compare/build_anchor.py FOLDER, and give its path as --anchor or LLAMA_BENCH.")


def main():
    """Parses the arguments, measures, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--threads", type=counts, default=[1, 2], help="numbers of threads [default: 1,2]")
    parser.add_argument("--rounds", type=count, default=5, help="turns of each [default: 5]")
    parser.add_argument("--prompt", type=count, default=512, help="tokens read [default: 512]")
    parser.add_argument("--generate", type=count, default=128, help="tokens generated [default: 128]")
    parser.add_argument("--backend", default="cpu", help="of backplane [default: cpu]")
    parser.add_argument("--anchor", type=Path, default=os.environ.get("LLAMA_BENCH"), help="llama-bench [default: LLAMA_BENCH]")
    parser.add_argument("--backplane", type=Path, help="the program [default: that of BACKPLANE_DIST, or the staged one]")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = parser.parse_args()
    if not given.model.is_file():
        fail(f"{given.model}: no such file")
    if given.anchor and not Path(given.anchor).is_file():
        fail(f"{given.anchor}: no such file; build it with tests/compare/build_anchor.py, or leave --anchor and LLAMA_BENCH out")
    program = host(given)
    rows, memory = [], []
    for threads in given.threads:
        found, held = compare(given, program, threads)
        rows += found
        memory.append(held)
    if given.json:
        print(json.dumps({"model": str(given.model), "rounds": given.rounds, "rows": rows, "memory": memory}, indent=2))
    else:
        show(given, rows, memory)


if __name__ == "__main__":
    main()
