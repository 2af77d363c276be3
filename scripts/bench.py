"""Measures everything beside the peers that Debian has, in one run, and writes the page of numbers: `make bench`.

Peers (scripts/peers) are installed if that can be done, and run only while they are needed. What each part measured
goes to out/bench-PART.json, what was run and where to out/bench-run.json, and both together become docs/numbers.md and
its plots.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from numbers_page import page
from numbers_page.machine import machine
from peers import corosync, debian, nats, rabbitmq
from peers.processes import PeerError

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "numbers.md"
PEERS = {"RabbitMQ": rabbitmq.PACKAGES, "NATS JetStream": nats.PACKAGES, "corosync": corosync.PACKAGES}
GROUP_SIZE = 1024
LEFT_OUT = "left out"
PART_TIMEOUT = 2400.0
"""Seconds. What takes longer than any of them should is given up, so that the others come to their turn."""
Result = dict[str, Any]


class PartError(Exception):
    """Nothing came of a part. The others are measured all the same."""


@dataclass
class Run:
    """What was asked for, and what came of it."""

    rounds: int
    quick: bool
    out: Path
    data: Path | None
    peers: dict[str, str] = field(default_factory=dict)
    """By name: its version, or why it is left out."""
    asked: set[str] = field(default_factory=set)
    left_out: set[str] = field(default_factory=set)
    parts: dict[str, Result] = field(default_factory=dict)

    def has(self, peer: str) -> bool:
        """Whether it is there, installed now if it was not."""
        if peer not in self.asked:
            self.asked.add(peer)
            why = debian.install(PEERS[peer])
            self.peers[peer] = f"{debian.version(PEERS[peer][0])} (Debian)"
            if why:
                self.leave_out(peer, why)
        return peer not in self.left_out

    def leave_out(self, peer: str, why: str) -> None:
        print(f"bench: {peer} is left out: {why}", file=sys.stderr)
        self.peers[peer] = f"{LEFT_OUT}: {why}"
        self.left_out.add(peer)

    def coterie(self, *arguments: str) -> tuple[Result, str]:
        """A benchmark's JSON, and its command as a user would write it."""
        command = " ".join(["coterie", "bench", *arguments])
        print(f"bench: {command}", file=sys.stderr)
        process = subprocess.Popen(
            [sys.executable, "-m", "coterie", "bench", *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        try:
            text, _ = process.communicate(timeout=PART_TIMEOUT)
        except BaseException as error:  # it ends its own processes first
            process.terminate()
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise PartError(f"{command}: not done after {PART_TIMEOUT / 60:g} minutes") from None
            raise
        if process.returncode not in (0, 1) or not text:
            raise PartError(f"{command}: exit code {process.returncode}")
        if process.returncode:
            print(f"bench: {command}: exit code 1: see `wrong` or `bounded` in its result", file=sys.stderr)
        result: Result = json.loads(text)
        return result, command

    def keep(self, part: str, result: Result, commands: Sequence[str], seconds: float) -> None:
        file = f"bench-{part}.json"
        (self.out / file).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        self.parts[part] = {"file": file, "commands": [*commands], "seconds": round(seconds, 1)}


# The parts.


def simple(
    case: str, normal: Sequence[str] = (), quick: Sequence[str] = (), most: int | None = None
) -> Callable[[Run], tuple[Result, list[str]]]:
    """A benchmark that needs no peer. `most`: rounds, however many others have, as each of them takes long."""

    def play(run: Run) -> tuple[Result, list[str]]:
        rounds = run.rounds if most is None else min(most, run.rounds)
        given = quick if run.quick else normal
        result, command = run.coterie(case, *given, "--rounds", str(rounds), "--json")
        return result, [command]

    return play


def brokers(run: Run) -> tuple[Result, list[str]]:
    """All peers run all the time, and are idle while others are measured."""
    with ExitStack() as stack:
        peers: list[str] = []
        if run.has("RabbitMQ"):
            try:
                ports = stack.enter_context(rabbitmq.running(run.data))
                peers += ["--peer", f"classic={ports[0]}", "--peer", "quorum=" + ",".join(map(str, ports))]
            except PeerError as error:
                run.leave_out("RabbitMQ", str(error))
        if run.has("NATS JetStream"):
            try:
                ports = stack.enter_context(nats.running(run.data))
                peers += ["--peer", "jetstream=nats:" + ",".join(map(str, ports))]
            except PeerError as error:
                run.leave_out("NATS JetStream", str(error))
        little = ["--seconds", "0.5", "--queued", "5000", "--joined", "5000", "--joins", "1", "--kills", "1"]
        where = ["--data", str(run.data)] if run.data is not None else []
        much = little if run.quick else ["--kills", "2"]
        result, command = run.coterie(
            "broker", "--nodes", "3", "--rounds", str(run.rounds), *peers, *where, *much, "--json"
        )
    if run.data is not None:
        command = command.replace(str(run.data), "DIR")
    return result, ["make BENCH=--hold bench    # the peers, and how to name them", command]


def groups(run: Run) -> tuple[Result, list[str]]:
    """Ours and corosync's, in turn."""
    warmup, seconds = (0.3, 0.5) if run.quick else (1.0, 3.0)
    values: dict[str, list[float]] = {}
    commands: list[str] = []
    with ExitStack() as stack:
        cluster = None
        if run.has("corosync"):
            try:
                cluster = stack.enter_context(corosync.running(run.data))
            except PeerError as error:
                run.leave_out("corosync", str(error))
        for _ in range(run.rounds):
            given = ["--members", "3", "--order", "total", "--rounds", "1", "--seconds", f"{seconds:g}", "--json"]
            group, first = run.coterie("group", *given)
            own, second = run.coterie("own", *given)
            commands = [first, second]
            found = {"coterie.delivered": group["cases"]["delivered"]["median"]}
            found |= {f"coterie.{key}": own["cases"][key]["median"] for key in ("own_p50", "own_p99")}
            if cluster is not None:
                try:
                    found |= _corosync(cluster, warmup, seconds)
                except PeerError as error:
                    run.leave_out("corosync", str(error))
                    cluster = None
            for key, value in found.items():
                values.setdefault(key, []).append(value)
    cases = {
        key: {
            "median": round(median(each), 1), "min": round(min(each), 1), "max": round(max(each), 1), "values": each,
            "unit": "messages/s" if key.endswith("delivered") else "us",
        }
        for key, each in values.items()
        if cluster is not None or not key.startswith("corosync.")
    }  # fmt: skip
    if cluster is not None:
        commands.append('make BENCH="--only corosync" bench    # these, and in turn peers/cpg_load.c at each node')
    return {"members": 3, "size": GROUP_SIZE, "rounds": run.rounds, "cases": cases}, commands


def _corosync(cluster: corosync.Cluster, warmup: float, seconds: float) -> dict[str, float]:
    every = cluster.measure(["sends"] * corosync.NODES, GROUP_SIZE, warmup, seconds)
    pings = cluster.measure(["pings"] + ["listens"] * (corosync.NODES - 1), GROUP_SIZE, warmup, seconds)
    return {
        "corosync.delivered": median(answer["per_second"] for answer in every),
        **{f"corosync.own_{key}": pings[0][f"{key}_us"] for key in ("p50", "p99")},
    }


PARTS: dict[str, Callable[[Run], tuple[Result, list[str]]]] = {
    "group": simple("group", ["--order", "both"], ["--order", "both", "--seconds", "0.5"]),
    "corosync": groups,
    "unicast": simple("unicast", [], ["--seconds", "0.5"]),
    "views": simple("views", [], ["--joins", "1", "--flushes", "2", "--kills", "1"]),
    "state": simple("state", ["--size", "1GiB"], ["--size", "64MiB", "--seconds", "0.5"]),
    "broker": brokers,
    "spark": simple("spark", ["--rows", "200000"], ["--rows", "3000", "--seconds", "0.5"], most=2),
    "audit": simple("audit", ["--events", "1000000"], ["--events", "10000"], most=1),
}  # fmt: skip


def hold(run: Run) -> None:
    """Start the peers that are brokers, and say how to name them."""
    with ExitStack() as stack:
        given = []
        if run.has("RabbitMQ"):
            ports = stack.enter_context(rabbitmq.running(run.data))
            given += [f"--peer classic={ports[0]}", "--peer quorum=" + ",".join(map(str, ports))]
        if run.has("NATS JetStream"):
            given.append("--peer jetstream=nats:" + ",".join(map(str, stack.enter_context(nats.running(run.data)))))
        print("coterie bench broker --nodes 3", *given, flush=True)
        print("Ctrl-C ends them.", flush=True)
        signal.pause()


def main() -> int:
    args = _arguments()
    only = [part.strip() for part in args.only.split(",")] if args.only else [*PARTS]
    for part in only:
        if part not in PARTS:
            print(f"bench: --only {part!r}: the parts are {', '.join(PARTS)}", file=sys.stderr)
            return 2
    target = args.page or (args.out / "numbers" / "numbers.md" if args.quick else PAGE)
    if args.again:
        return _write(args.out, target)
    if args.rounds is not None and args.rounds < 1:
        print(f"bench: --rounds {args.rounds}: at least 1", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # peers must not outlive it
    args.out.mkdir(parents=True, exist_ok=True)
    run = Run(args.rounds or (1 if args.quick else 3), args.quick, args.out, args.data)
    if args.hold:
        hold(run)
        return 0
    found, date = machine(run.data), datetime.now(UTC)
    if args.only:
        _remember(run)
    failed: list[str] = []
    for part in (part for part in PARTS if part in only):
        since = time.monotonic()
        try:
            result, commands = PARTS[part](run)
        except PartError as error:
            failed.append(part)
            print(f"bench: {part}: {error}", file=sys.stderr)
            continue
        run.keep(part, result, commands, time.monotonic() - since)
        about = {
            "command": ("make bench, then " if set(run.parts) - {*only} else "") + _command(args),
            "date": f"{date:%B %Y}", "seconds": sum(part["seconds"] for part in run.parts.values()), "quick": run.quick,
            "machine": found, "peers": run.peers, "parts": run.parts,
        }  # fmt: skip
        (run.out / page.RUN).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    if failed:
        print(f"bench: not measured: {', '.join(failed)}", file=sys.stderr)
    return _write(run.out, target) or (1 if failed else 0)


def _remember(run: Run) -> None:
    """Other parts stay what they were measured last, with as much."""
    try:
        last, _ = page.read(run.out)
    except FileNotFoundError:
        return
    if last["quick"] == run.quick:
        run.parts |= last["parts"]
        run.peers |= {name: text for name, text in last["peers"].items() if not text.startswith(LEFT_OUT)}


def _command(args: argparse.Namespace) -> str:
    """Without paths: they are of this machine."""
    given = [("--quick", args.quick), (f"--rounds {args.rounds}", args.rounds), (f"--only {args.only}", args.only)]
    words = [text for text, wanted in given if wanted]
    return f'make BENCH="{" ".join(words)}" bench' if words else "make bench"


def _write(out: Path, target: Path) -> int:
    try:
        run, results = page.read(out)
    except FileNotFoundError as error:
        print(f"bench: {error.filename} is not there: run it without --again first", file=sys.stderr)
        return 2
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in page.write(run, results, target):
        print(f"bench: written: {path}", file=sys.stderr)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench.py", description=__doc__)
    parser.add_argument("--rounds", type=int, help="of everything that has rounds (default: 3, quick: 1)")
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="too little of everything, to see that it works")
    parser.add_argument("--data", type=Path, metavar="DIR", help="on which disk (default: that of temporary files)")
    parser.add_argument("--out", type=Path, default=ROOT / "out", metavar="DIR", help="for results (default: out)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="default: docs/numbers.md; quick: in --out")
    parser.add_argument("--again", action="store_true", help="measure nothing: write the page from what is in --out")
    parser.add_argument("--hold", action="store_true", help="measure nothing: start RabbitMQ and NATS, and wait")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
