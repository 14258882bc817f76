#!/usr/bin/env python3
"""What serving costs, and what it bears: `backplane serve` beside `backplane run` and beside a llama-server, in one run.

    python3 tests/compare/serve_load.py MODEL [--dist FOLDER] [--llama-server PATH] [--clients 32] [--tokens 128] [--threads 2]

1. Overhead: the same chat with the same seed by `run` and by a streaming client of `serve`, in turns: tokens per second while generating,
   by run's own clock and by the client's (first piece to last).
2. Load: as many clients at once as --clients, each asking for --tokens tokens as a stream, of our server and of the other one with the same slots and
   threads, in turns; and one client alone of ours. Tokens of all clients by the time from the first request to the last end.

Requests are sampled (temperature 0.8, a seed each) and go on past the model's own end. With --open they say no length, as most clients do, and end where the model
ends them. The clients are one thread that waits on all sockets and
only counts, so that they cost the servers little. Each figure is the median of --rounds. Standard library only.
"""

import argparse
import json
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STORY = "Write a long story about a lighthouse and those who live in it."


def fail(message):
    """Ends the program with one line."""
    sys.exit(f"error: {message}")


def free_port():
    """A port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """A server that runs; ended by `with`."""

    def __init__(self, name, command, ready):
        self.name, self.port = name, free_port()
        self.log = tempfile.TemporaryFile()
        command = [str(part).replace("PORT", str(self.port)) for part in command]
        self.child = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for _ in range(600):
            if self.child.poll() is not None:
                self.log.seek(0)
                fail(f"{name} has ended: {self.log.read().decode(errors='replace')[-500:]}")
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{ready}", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            time.sleep(0.05)
        fail(f"{name} is not ready after 30 s")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait()


class Client:
    """One request and what came of it."""

    def __init__(self, port, body):
        body = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)
        self.parts, self.times = [], []

    def take(self):
        """Reads what has come; whether more may come."""
        data = self.socket.recv(1 << 16)
        if not data:
            self.socket.close()
            return False
        self.parts.append(data)
        self.times.append(time.perf_counter())
        return True

    def events(self):
        """The events, and when each had come."""
        events, rest = [], b""
        for data, when in zip(self.parts, self.times):
            *lines, rest = (rest + data).split(b"\n")
            # A chunk's size stands in a line of its own.
            events += [(json.loads(line[6:]), when) for line in lines if line.startswith(b"data: {")]
        if not events or "error" in events[-1][0]:
            fail(f"a request failed: {b''.join(self.parts)[:400].decode(errors='replace')}")
        return events


def ask_all(port, bodies):
    """Asks for all at once; the clients, and the seconds until the last has its answer."""
    start = time.perf_counter()
    waiting = selectors.DefaultSelector()
    clients = [Client(port, body) for body in bodies]
    for client in clients:
        waiting.register(client.socket, selectors.EVENT_READ, client)
    left = len(clients)
    while left:
        for key, _ in waiting.select():
            if not key.data.take():
                waiting.unregister(key.fileobj)
                left -= 1
    return clients, time.perf_counter() - start


def chat(model, tokens, number):
    """A request for a stream of that many tokens; without a number of as many as the model makes of it."""
    length = {"max_tokens": tokens, "ignore_eos": True} if tokens else {}
    return {
        "model": model,
        "messages": [{"role": "user", "content": f"{STORY} It is number {number}."}],
        "temperature": 0.8, "seed": number, "stream": True, "stream_options": {"include_usage": True}, **length,
    }


def throughput(port, model, clients, tokens, first):
    """Tokens per second of all clients together."""
    asked = [chat(model, tokens, first + number) for number in range(clients)]
    answered, seconds = ask_all(port, asked)
    told = [client.events()[-1][0]["usage"]["completion_tokens"] for client in answered]
    if tokens and any(count != tokens for count in told):
        fail(f"asked for {tokens} tokens each, got {sorted(set(told))}")
    return sum(told) / seconds


def by_run(program, model, tokens, threads, seed, home):
    """Tokens per second of a `run` while it generates, and how many there were."""
    command = [program, "run", model, STORY, "--backend", "cpu", "--json", "--threads", threads, "--max-tokens", tokens, "--seed", seed]
    out = subprocess.run([str(part) for part in command], capture_output=True, env={**os.environ, "HOME": home})
    if out.returncode != 0:
        fail(f"run: {out.stderr.decode(errors='replace').strip()}")
    told = json.loads(out.stdout)
    count = told["usage"]["completion_tokens"]
    return (count - 1) / told["timings"]["decode_s"], count


def by_serve(server, model, tokens, seed):
    """Tokens per second of a stream, from the first piece to the last event, by the client's clock; and how many there were."""
    body = {**chat(model, tokens, seed), "messages": [{"role": "user", "content": STORY}]}
    del body["ignore_eos"]
    (client,), _ = ask_all(server.port, [body])
    events = client.events()
    pieces = [when for event, when in events if event["choices"] and event["choices"][0]["delta"].get("content")]
    count = events[-1][0]["usage"]["completion_tokens"]
    return (count - 1) / (events[-1][1] - pieces[0]), count


def beside_the_engine(pid):
    """Processor seconds of all threads of a process but the engine's; `None` where the system doesn't tell."""
    seconds = 0
    try:
        ticks = os.sysconf("SC_CLK_TCK")
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        seconds = int(fields[11]) + int(fields[12])
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
            except FileNotFoundError:  # it has ended meanwhile
                continue
            if name.startswith(("backplane-engin", "backplane-cpu")):
                seconds -= int(fields.split()[11]) + int(fields.split()[12])
        return seconds / ticks
    except (OSError, ValueError):
        return None


def overhead(arguments, server, model, home):
    """How much slower a stream is than a run, in hundredths; and what threads other than the engine's took."""
    shares, generating, beside = [], 0, 0
    for number in range(arguments.rounds * 2):
        seed = 10 + number
        def run():
            return by_run(arguments.program, arguments.model, arguments.single, arguments.threads, seed, home)
        before = beside_the_engine(server.child.pid)
        # In turns, also of who is first.
        if number % 2:
            (ran, run_count), (served, served_count) = run(), by_serve(server, model, arguments.single, seed)
        else:
            (served, served_count), (ran, run_count) = by_serve(server, model, arguments.single, seed), run()
        if run_count != served_count:
            fail(f"with one seed run made {run_count} tokens, serve {served_count}")
        shares.append((1 - served / ran) * 100)
        if before is not None:
            generating += served_count / served
            beside += beside_the_engine(server.child.pid) - before
        print(f"  {run_count} tokens: run {ran:.1f}, serve {served:.1f} tokens/s: {shares[-1]:+.1f} %", flush=True)
    low, _, high = statistics.quantiles(shares, n=4)
    print(f"overhead of serving: {statistics.median(shares):.1f} % (median of {len(shares)}, middle half {low:.1f} to {high:.1f})")
    if generating:
        print(f"threads beside the engine took {beside / generating * 100:.1f} % of one processor while it generated")


def main():
    """The whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--dist", type=Path, default=REPOSITORY / "target/dist", help="an installation, as `stage` lays it out")
    parser.add_argument("--llama-server", type=Path, help="the other server; none leaves it out")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--open", action="store_true", help="where the load is measured, ask for no length")
    parser.add_argument("--single", type=int, default=256, help="tokens of a reply where overhead is measured")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["overhead", "load"])
    parser.add_argument("--serve", nargs="*", default=[], metavar="OPTION", help="more options of ours, without their dashes")
    arguments = parser.parse_args()
    arguments.program = arguments.dist / "backplane"
    model = arguments.model.stem
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        ours = [arguments.program, "serve", arguments.model, "--backend", "cpu", "--port", "PORT", "--threads", arguments.threads]
        ours += [f"--{option}" for option in arguments.serve]
        with Server("backplane", ours, "/readyz") as server:
            if arguments.only != "load":
                overhead(arguments, server, model, home)
            if arguments.only != "overhead":
                load(arguments, server, model)


def load(arguments, server, model):
    """Throughput with many clients, of ours, of one client of ours, and of the other."""
    other = None
    if arguments.llama_server:
        slots = arguments.clients
        context = slots * 512
        command = [arguments.llama_server, "--model", arguments.model, "--port", "PORT", "--n-gpu-layers", 0]
        command += ["--parallel", slots, "--ctx-size", context, "--threads", arguments.threads]
        other = Server("llama-server", command, "/health")
    many, alone, theirs = [], [], []
    tokens = None if arguments.open else arguments.tokens
    try:
        for number in range(arguments.rounds):
            first = 1000 * (number + 1)
            alone.append(throughput(server.port, model, 1, tokens, first))
            many.append(throughput(server.port, model, arguments.clients, tokens, first + 100))
            line = f"  {arguments.clients} clients {many[-1]:.0f} tokens/s, one {alone[-1]:.0f}: {many[-1] / alone[-1]:.2f} times"
            if other:
                theirs.append(throughput(other.port, model, arguments.clients, tokens, first + 100))
                line += f"; llama-server {theirs[-1]:.0f}: {many[-1] / theirs[-1]:.2f} times"
            print(line, flush=True)
    finally:
        if other:
            other.__exit__()
    middle = statistics.median
    print(f"{arguments.clients} clients by one: {middle(a / b for a, b in zip(many, alone)):.2f} times")
    if theirs:
        print(f"{arguments.clients} clients by llama-server: {middle(a / b for a, b in zip(many, theirs)):.2f} times")


if __name__ == "__main__":
    main()
