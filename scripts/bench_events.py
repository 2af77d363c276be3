"""What an event costs that is not its bytes: three brokers, one persistent message an event. Not a part of any test.

Prints JSON, per event and broker. Three parts (--only):

  counts      calls of Python functions, of those written in C, and system calls; a message is published when the one
              before was confirmed and consumed. Counted by cProfile, and by `strace` where there is one. On a busy
              machine a message takes longer, and more timers end meanwhile: the unit test of an event's cost counts by
              simulated time
  alone       processor time, in microseconds, of the same: no event has more than one message
  steady      processor time at 500 messages a second; latencies in milliseconds
  saturation  the same with 1000 messages under way: events of many messages, so per message

`same`: publisher and consumer at the sequencer; `apart`: the publisher at the second broker, the consumer at the third.
`--against FOLDER`: another checkout's `src`, measured in turns; `ratio` is ours to that one's. `--top N`: the N
functions that are called most often at each broker.

    python scripts/bench_events.py [--against /other/checkout/src] [--only steady] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from coterie.bench.broker_clients import Consumer, Publisher, connected
from coterie.bench.broker_nodes import Nodes
from coterie.bench.broker_stage import PATIENCE
from coterie.runtime.aio import run

SIZE = 1024
RATE = 500
COUNTED = 300
PLACES = {"same": (0, 0), "apart": (1, 2)}
PARTS = ("counts", "alone", "steady", "saturation")
OURS = str(Path(__file__).resolve().parent.parent / "src")

PROFILED = """
import cProfile, os, signal
profile = cProfile.Profile()
def begin(*_):
    profile.enable()
def end(*_):
    profile.disable()
    profile.dump_stats(os.path.join(os.environ["COUNTED"], f"{os.getpid()}.new"))
    profile.clear()
    os.rename(*(os.path.join(os.environ["COUNTED"], str(os.getpid()) + tail) for tail in (".new", ".profile")))
signal.signal(signal.SIGUSR1, begin)
signal.signal(signal.SIGUSR2, end)
"""
"""What each broker runs first while calls are counted."""


@contextmanager
def brokers(source: str, folder: Path, profiled: bool = False) -> Iterator[Nodes]:
    """Three, of that checkout; the first is the sequencer."""
    (folder / "sitecustomize.py").write_text(PROFILED)
    os.environ["COUNTED"] = str(folder)
    os.environ["PYTHONPATH"] = os.pathsep.join([source, str(folder)] if profiled else [source])
    with Nodes("events", 3, "credit", None) as nodes:
        nodes.each[0].start()
        nodes.each[0].up()
        for node in nodes.each[1:]:
            node.start()
        for node in nodes.each[1:]:
            node.up()
        yield nodes


class Clients:
    """A publisher and a consumer of one queue."""

    def __init__(self, publisher: Publisher, consumer: Consumer) -> None:
        self.publisher, self.consumer = publisher, consumer

    @classmethod
    async def of(cls, nodes: Nodes, place: str, every: int) -> Clients:
        to, away = (nodes.ports[number] for number in PLACES[place])
        publisher = await connected(partial(Publisher, "events", 0, SIZE, True, ""), to, patience=PATIENCE)
        return cls(publisher, await connected(partial(Consumer, "events", SIZE, every, ""), away, patience=PATIENCE))

    async def done(self) -> None:
        while self.publisher.confirmed < self.publisher.sent or self.consumer.got < self.publisher.sent:
            await asyncio.sleep(0.0005)

    async def one_by_one(self, count: int) -> None:
        for _ in range(count):
            self.publisher.begin(self.publisher.sent + 1, 0)
            await self.done()

    async def end(self) -> None:
        self.publisher.limit = self.publisher.sent
        await self.done()
        self.consumer.settle()
        self.publisher.close()
        self.consumer.close()
        await asyncio.sleep(0.1)


# Counts.


async def counted(source: str, place: str, top: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, brokers(source, Path(folder), profiled=True) as nodes:
        clients = await Clients.of(nodes, place, 1)
        await clients.one_by_one(50)
        for node in nodes.each:
            os.kill(node.pid, signal.SIGUSR1)
        await clients.one_by_one(COUNTED)
        for node in nodes.each:
            os.kill(node.pid, signal.SIGUSR2)
        found = {node.name: await profiled(Path(folder) / f"{node.pid}.profile", top) for node in nodes.each}
        for node in nodes.each:
            found[node.name]["system"] = await system_calls(node.pid, clients)
        await clients.end()
        return found


async def profiled(file: Path, top: int) -> dict[str, Any]:
    while not file.exists():
        await asyncio.sleep(0.01)
    entries: Any = pstats.Stats(str(file)).stats  # type: ignore[attr-defined]
    calls = {True: 0.0, False: 0.0}
    for (where, _, _), (_, count, *_) in entries.items():
        calls[where != "~"] += count / COUNTED
    row: dict[str, Any] = {"python": round(calls[True], 1), "c": round(calls[False], 1)}
    if top:
        often = sorted(entries.items(), key=lambda entry: -entry[1][1])[:top]
        row["top"] = [
            f"{count / COUNTED:.2f} {where.partition('coterie/')[2] or where}:{line} {name}"
            for (where, line, name), (_, count, *_) in often
        ]
    return row


async def system_calls(pid: int, clients: Clients) -> dict[str, float] | None:
    """By name, per event; None: nothing here can count them."""
    if which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile("r") as out:
        tracer = subprocess.Popen(
            ["strace", "-f", "-c", "-S", "calls", "-o", out.name, "-p", str(pid)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert tracer.stderr is not None
        tracer.stderr.readline()  # it is attached
        await clients.one_by_one(COUNTED)
        tracer.send_signal(signal.SIGINT)
        tracer.wait()
        rows = [line.split() for line in out.read().splitlines() if line.strip()[:1].isdigit()]
    found = {row[-1]: round(int(row[3]) / COUNTED, 2) for row in rows}
    return {name: count for name, count in found.items() if count >= 0.02}


# Processor time.


def cpu_us(pid: int) -> float:
    """So far, of all its threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1000


async def loaded(source: str, place: str, part: str, seconds: float) -> dict[str, Any]:
    alone, rate = part == "alone", RATE if part == "steady" else 0
    with tempfile.TemporaryDirectory() as folder, brokers(source, Path(folder)) as nodes:
        clients = await Clients.of(nodes, place, 50 if part == "saturation" else 1)
        if alone:
            await clients.one_by_one(RATE)
        else:
            clients.publisher.begin(None, rate)
            await asyncio.sleep(1.5)
        clients.publisher.latencies.clear()
        clients.consumer.latencies.clear()
        before, got, since = [cpu_us(node.pid) for node in nodes.each], clients.consumer.got, time.monotonic()
        if alone:
            await clients.one_by_one(int(seconds * RATE))
        else:
            await asyncio.sleep(seconds)
        spent = [cpu_us(node.pid) - then for node, then in zip(nodes.each, before, strict=True)]
        messages = clients.consumer.got - got
        row: dict[str, Any] = {
            "messages_per_second": messages / (time.monotonic() - since),
            "all": sum(spent) / messages,
            **{node.name: us / messages for node, us in zip(nodes.each, spent, strict=True)},
        }
        for name, times in (("confirm", clients.publisher.latencies), ("consume", clients.consumer.latencies)):
            times.sort()
            row |= {f"{name}_p50": times[len(times) // 2] * 1000, f"{name}_p99": times[len(times) * 99 // 100] * 1000}
        await clients.end()
        return row


def measured(place: str, part: str, seconds: float, source: str) -> dict[str, Any]:
    return run(loaded(source, place, part, seconds))


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: round(median(row[key] for row in rounds), 3) for key in rounds[0]}


def in_turns(sources: dict[str, str], rounds: int, measure: Callable[[str], Any]) -> dict[str, Any]:
    found: dict[str, list[Any]] = {name: [] for name in sources}
    for _ in range(rounds):
        for name, source in sources.items():
            found[name].append(measure(source))
    rows = {name: middle(each) for name, each in found.items()}
    if "against" in rows:
        ratios = [
            {key: ours[key] / theirs[key] for key in ours}
            for ours, theirs in zip(found["ours"], found["against"], strict=True)
        ]
        rows["ratio"] = middle(ratios)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="FOLDER", help="the `src` of another checkout")
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--place", choices=PLACES, help="one place")
    parser.add_argument("--rounds", type=int, default=3, help="of steady and saturation (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round (default: %(default)s)")
    parser.add_argument("--top", type=int, default=0, help="functions that are called most often (default: none)")
    args = parser.parse_args()
    sources = {"ours": OURS} | ({"against": args.against} if args.against else {})
    result: dict[str, Any] = {}
    for place in [args.place] if args.place else PLACES:
        for part in [args.only] if args.only else PARTS:
            if part == "counts":
                found = {name: run(counted(source, place, args.top)) for name, source in sources.items()}
            else:
                found = in_turns(sources, args.rounds, partial(measured, place, part, args.seconds))
            result[f"{part} {place}"] = found
    json.dump(result, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
