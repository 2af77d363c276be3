"""A cluster of real brokers to which something is done again and again, under load: and the books must balance.

python tests/chaos/cluster_chaos.py --rounds 40 --nodes 3 --seed 7 --json

Pika clients publish with confirms and consume with committed acks on all nodes all the time. In each round one thing
is done, which the seed chooses, and undone: a broker is killed with -9 and started again; stopped and woken; cut off
from others, in both directions or in one, silently or with resets; its disk takes nothing; its syncs hang, while it is
cut off or not; all are killed and started in any order, some once more while they are updated; or a hostile client
sends what nobody expects. Then all brokers must serve again. Checked: nothing confirmed is lost; nothing comes back
whose ack was committed; whatever comes again is flagged. One line for each round; exit code 1 if anything of this is
not so. A seed gives the same faults in the same order; what they meet depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hanging_sync import HangingSync
from hostile_client import HostileClient
from mesh import Link, Mesh, hosts

from coterie.demo.broker_story import drained, served, until
from coterie.demo.brokers import Brokers
from coterie.demo.clients import Client, Consumer, Publisher
from coterie.demo.orders import Fault, Ledger
from coterie.demo.shop import QUEUE
from coterie.errors import CoterieError

KINDS = ("kill", "stop", "cut", "disk", "slow_syncs", "restart", "hostile")
STUCK = 60.0
"""Seconds after which something that waits has waited too long."""
SMALL = (
    "--store-segment-bytes", "262144", "--store-compact-bytes", "65536", "--store-positions-ahead", "256",
    "--log-level", "info",
)  # fmt: skip
"""So that segments are begun, and compacted, many times."""


@dataclass
class Figures:
    """Of one kind of fault, in seconds."""

    first: list[float] = field(default_factory=list)
    """Until something that was published after the fault was delivered at a broker that it did not concern."""
    serving: list[float] = field(default_factory=list)
    """From the end of the fault until every broker had served a client."""

    def summary(self) -> dict[str, float | int]:
        first = {}
        if self.first:
            first = {
                "first_delivery_p50": round(statistics.median(self.first), 3),
                "first_delivery_max": round(max(self.first), 3),
            }
        return {
            "count": len(self.serving),
            **first,
            "serving_p50": round(statistics.median(self.serving), 3),
            "serving_max": round(max(self.serving), 3),
        }


class Chaos:
    """The whole of it."""

    def __init__(
        self, nodes: int, folder: Path, seed: int, say: Callable[[str], None], rate: float = 150, longest: float = 5.0
    ) -> None:
        """`longest`: seconds that a fault may last."""
        self.ledger = Ledger()
        self.figures: dict[str, Figures] = {}
        self._random = random.Random(seed)
        self._say = say
        self._longest = longest
        self._brokers = Brokers(nodes, folder, SMALL, hosts=hosts(nodes))
        self._faults = [0] * nodes
        self._ports = [broker.port for broker in self._brokers.each]
        self._publishers = [Publisher(n, self._ports, self._faults, self.ledger, rate) for n in range(nodes)]
        self._consumers = [Consumer(n, self._ports, self._faults, self.ledger) for n in range(nodes)]
        self._mesh = Mesh(self._brokers.between)
        self._syncs = [HangingSync(folder / "shim" / broker.name) for broker in self._brokers.each]
        for broker, syncs in zip(self._brokers.each, self._syncs, strict=True):
            broker.environment = syncs.environment
        self._intruder = HostileClient(self._ports, self._random)
        self._bag: list[str] = []
        self._began: list[tuple[float, int]] = []
        """When faults were, and in which rounds."""

    @property
    def _clients(self) -> list[Client]:
        return [*self._publishers, *self._consumers]

    async def run(self, rounds: int) -> dict[str, object]:
        began = time.monotonic()
        violations = self.ledger.violations
        done = 0
        try:
            async with self._mesh:
                await self._brokers.start()
                session = await served(self._ports[0], STUCK)
                await session.ask(
                    lambda answered: session.channel.queue_declare(QUEUE, durable=True, callback=answered)
                )
                await session.close()
                tasks = [asyncio.create_task(client.run()) for client in self._clients]
                try:
                    for number in range(1, rounds + 1):
                        await self._round(number)
                        done = number
                    await self._rest(tasks)
                except (CoterieError, TimeoutError) as error:
                    violations.append(f"stuck: {error}")
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)
                    await self._brokers.end()
        finally:
            await self._brokers.end()
        violations += self._where_lost()
        accounts = self.ledger.close()
        return {
            "rounds": done,
            "seconds": round(time.monotonic() - began, 1),
            **asdict(accounts),
            "faults": {kind: figures.summary() for kind, figures in self.figures.items()},
            "violations": violations[:100],
            "good": not violations,
        }

    async def _round(self, number: int) -> None:
        ledger = self.ledger
        before = ledger.confirmed, ledger.deliveries, len(ledger.violations)
        await until("clients get on", lambda: ledger.confirmed > before[0], STUCK)
        await asyncio.sleep(self._random.uniform(0, 0.5))
        if not self._bag:
            self._bag = self._random.sample(KINDS, len(KINDS))
        kind = self._bag.pop()
        ledger.fault = fault = Fault(asyncio.get_running_loop().time(), frozenset())
        self._began.append((fault.began, number))
        what = await getattr(self, f"_{kind}")(fault)
        healed = asyncio.get_running_loop().time()
        await self._all_serve()
        serving = asyncio.get_running_loop().time() - healed
        figures = self.figures.setdefault(kind, Figures())
        delivered = ""
        if len(fault.nodes) < len(self._ports):
            first = min(fault.elsewhere.values(), default=STUCK)
            figures.first.append(first)
            delivered = f"delivered elsewhere in {first * 1000:.0f} ms, "
        figures.serving.append(serving)
        self._say(
            f"round {number:3}: {what}; {delivered}all serve {serving:.1f} s later; "
            f"{ledger.confirmed - before[0]} confirmed, {ledger.deliveries - before[1]} delivered; "
            f"{len(ledger.violations) - before[2]} violations"
        )

    async def _all_serve(self) -> None:
        """Every broker lets clients in, clients go home, and at each of them something new is delivered."""
        for broker in self._brokers.each:
            await (await served(broker.port, STUCK)).close()
        old = self.ledger.fault
        self.ledger.fault = fault = Fault(asyncio.get_running_loop().time(), frozenset())
        await until("every broker delivers to its clients", lambda: self._at_home(fault), STUCK)
        self.ledger.fault = old

    def _at_home(self, fault: Fault) -> bool:
        """A broker that has just noticed that it was cut off may still send its clients away: so home again."""
        for client in self._clients:
            client.go_home()
        return len(fault.elsewhere) == len(self._ports) and all(client.node == client.home for client in self._clients)

    # What can be done to them. Each does it, waits, undoes it, and says what it did.

    def _concern(self, fault: Fault, *nodes: int, doubtful: bool = True) -> None:
        fault.nodes = frozenset(nodes)
        if doubtful:
            for node in nodes:
                self._faults[node] += 1

    def _draw(self) -> int:
        return self._random.randrange(len(self._ports))

    async def _kill(self, fault: Fault) -> str:
        victim = self._brokers.each[self._draw()]
        pause = self._random.uniform(0, self._longest / 2)
        self._concern(fault, victim.number)
        self._mesh.refuse(victim.number)
        await victim.kill()
        await asyncio.sleep(pause)
        await self._mesh.accept(victim.number)
        await victim.start()
        return f"kill -9 {victim.name}, away for {pause:.1f} s"

    async def _stop(self, fault: Fault) -> str:
        victim = self._brokers.each[self._draw()]
        pause = self._random.uniform(0.2, self._longest)
        self._concern(fault, victim.number)
        victim.send(signal.SIGSTOP)
        try:
            await asyncio.sleep(pause)
        finally:
            victim.send(signal.SIGCONT)
        return f"stop {victim.name} for {pause:.1f} s"

    async def _cut(self, fault: Fault) -> str:
        victim = self._draw()
        others = [number for number in range(len(self._ports)) if number != victim]
        kind = self._random.choice(("from all", "from one", "that it hears nothing", "that nobody hears it"))
        if kind == "from one":
            others = [self._random.choice(others)]
        out: list[Link] = [(victim, other) for other in others]
        links = {
            "that it hears nothing": [link[::-1] for link in out],
            "that nobody hears it": out,
        }.get(kind, out + [link[::-1] for link in out])
        reset = kind.startswith("from") and self._random.random() < 0.5
        pause = self._random.uniform(0.2, 1.2 * self._longest)
        self._concern(fault, victim, *(others if kind == "from one" else ()))
        await self._mesh.cut(links, reset)
        await asyncio.sleep(pause)
        await self._mesh.heal()
        name = self._brokers.each[victim].name
        whom = f"{kind} ({self._brokers.each[others[0]].name})" if kind == "from one" else kind
        return f"cut {name} off, {whom}, {'with resets' if reset else 'silently'}, for {pause:.1f} s"

    async def _disk(self, fault: Fault) -> str:
        victim = self._brokers.each[self._draw()]
        pause = self._random.uniform(0.5, self._longest)
        self._concern(fault, victim.number, doubtful=False)
        victim.limit_files(0)
        try:
            await asyncio.sleep(pause)
        finally:
            victim.limit_files(None)
        return f"no room on the disk of {victim.name} for {pause:.1f} s"

    async def _syncs_hang(self, victim: int, seconds: float) -> None:
        self._syncs[victim].hang()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._syncs[victim].go_on()

    async def _slow_syncs(self, fault: Fault) -> str:
        """If it is cut off as well, it may be excluded, and come back while its old sync still hangs."""
        victim = self._draw()
        pause = self._random.uniform(0.5, 1.5 * self._longest)
        name = self._brokers.each[victim].name
        if self._random.random() < 0.5:
            self._concern(fault, victim, doubtful=False)
            await self._syncs_hang(victim, pause)
            return f"syncs of {name} hang for {pause:.1f} s"
        self._concern(fault, victim)
        others = [number for number in range(len(self._ports)) if number != victim]
        hanging = asyncio.create_task(self._syncs_hang(victim, pause))
        links: list[Link] = [(victim, other) for other in others]
        await self._mesh.cut([*links, *(link[::-1] for link in links)], reset=True)
        away = self._random.uniform(0.2, 1.0) * pause
        await asyncio.sleep(away)
        await self._mesh.heal()
        await hanging
        return f"syncs of {name} hang for {pause:.1f} s, in which it is cut off for {away:.1f} s"

    async def _restart(self, fault: Fault) -> str:
        """All die, some a moment before the others, and come in any order; one or two of them die again soon."""
        brokers = self._random.sample(self._brokers.each, len(self._brokers.each))
        self._concern(fault, *range(len(brokers)))
        for broker in brokers:
            self._mesh.refuse(broker.number)
            await broker.kill()
            await asyncio.sleep(self._random.choice((0.0, self._random.uniform(0, 1))))
        order = self._random.sample(brokers, len(brokers))
        for broker in order:
            await self._mesh.accept(broker.number)
            await broker.start()
            await asyncio.sleep(self._random.choice((0.0, self._random.uniform(0, 1))))
        again = self._random.sample(order, self._random.randrange(3))
        for broker in again:
            await asyncio.sleep(self._random.uniform(0, 0.7))
            self._mesh.refuse(broker.number)
            await broker.kill()
            await self._mesh.accept(broker.number)
            await broker.start()
        once_more = f", {' and '.join(each.name for each in again)} once more" if again else ""
        return f"kill -9 all, start {', '.join(each.name for each in order)}{once_more}"

    async def _hostile(self, fault: Fault) -> str:
        found = len(self._intruder.violations)
        deeds = await asyncio.to_thread(self._intruder.run, 6)
        self.ledger.violations += self._intruder.violations[found:]
        return f"hostile client: {', '.join(deeds)}"

    async def _rest(self, tasks: list[asyncio.Task[None]]) -> None:
        """Publishers stop, everything is consumed, all brokers agree that nothing is left, and end in good order."""
        for publisher in self._publishers:
            publisher.stop()
        async with asyncio.timeout(STUCK):
            await asyncio.gather(*tasks[: len(self._publishers)])
        await drained(self._ports, self.ledger, STUCK)
        for consumer in self._consumers:
            consumer.stop()
        async with asyncio.timeout(STUCK):
            await asyncio.gather(*tasks)
        if not await drained(self._ports, self.ledger, STUCK):
            self.ledger.violations.append("brokers do not agree that the queue is empty")
        for broker, code in zip(self._brokers.each, await self._brokers.stop(), strict=True):
            if code:
                self.ledger.violations.append(f"{broker.name} ended with code {code}")

    def _where_lost(self) -> list[str]:
        """What helps to find out why."""
        found = []
        for body in self.ledger.missing():
            order = self.ledger.orders[body]
            after = max((number for began, number in self._began if began < order.sent), default=0)
            found.append(f"{body!r} was published at node{order.node + 1}, after round {after} had begun")
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="faults (default: %(default)s)")
    parser.add_argument("--nodes", type=int, default=3, help="brokers, 3 to 9 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults (default: another one each time)")
    parser.add_argument("--data", type=Path, help="folder of data and logs (default: a new one, kept if there is need)")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object on standard output, rounds on standard error"
    )
    options = parser.parse_args()
    if not 3 <= options.nodes <= 9 or options.rounds < 1:
        parser.error("--nodes is 3 to 9, and --rounds at least 1")
    seed = random.randrange(1 << 32) if options.seed is None else options.seed

    def say(text: str) -> None:
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    folder = options.data or Path(tempfile.mkdtemp(prefix="coterie-cluster-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    say(f"seed {seed}")
    outcome = {"seed": seed, **asyncio.run(Chaos(options.nodes, folder, seed, say).run(options.rounds))}
    if options.json:
        print(json.dumps(outcome, indent=2))
    else:
        say("".join(f"{name}: {value}\n" for name, value in outcome.items()).rstrip())
    if not outcome["good"]:
        say(f"data and logs of the brokers: {folder}")
        return 1
    if options.data is None:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
