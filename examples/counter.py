"""Three members in one process draw numbers from one counter: no number is drawn twice, and none is left out.

python examples/counter.py
"""

import asyncio

from coterie.blocks import Hub, SharedCounter
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run


class Desk:
    def __init__(self, name: str, peers: list[str]) -> None:
        self.runtime = AioRuntime(name)
        stack = preset("total-order", TCP={"bind_port": 0}, STATIC={"peers": peers})
        self.hub = Hub(self.runtime, stack, group="tickets", name=name)
        self.tickets = SharedCounter(self.hub, "tickets")

    async def close(self) -> None:
        await self.hub.close()
        await self.runtime.close()


async def main() -> None:
    alpha = Desk("alpha", [])
    await alpha.hub.connect()
    print("alpha starts at", await alpha.tickets.add(100))
    peers = [str(alpha.hub.channel.stack.find(Tcp).endpoint)]
    desks = [alpha, Desk("beta", peers), Desk("gamma", peers)]
    for desk in desks[1:]:
        await desk.hub.connect()
        print(f"{desk.hub.local.name} joined at", desk.tickets.value)

    drawn = await asyncio.gather(*(desk.tickets.add() for desk in desks for _ in range(10)))
    print(f"{len(drawn)} tickets, {len(set(drawn))} different ones, from {min(drawn)} to {max(drawn)}")
    for desk in reversed(desks):
        await desk.close()


if __name__ == "__main__":
    run(main())
