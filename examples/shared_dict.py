"""Three members in one process share a dictionary: each has a copy, and all see the same changes in the same order.

python examples/shared_dict.py
"""

import asyncio

from coterie.blocks import Hub, SharedDict
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run


class Shop:
    def __init__(self, name: str, peers: list[str]) -> None:
        self.runtime = AioRuntime(name)
        stack = preset("total-order", TCP={"bind_port": 0}, STATIC={"peers": peers})
        self.hub = Hub(self.runtime, stack, group="shop", name=name)
        self.stock = SharedDict(self.hub, "stock")

    async def sell(self, what: str) -> bool:
        """One of it, unless another member is faster: then look again."""
        while (count := int(self.stock.get(what) or 0)) > 0:
            if await self.stock.compare_and_set(what, b"%d" % count, b"%d" % (count - 1)):
                return True
        return False

    async def close(self) -> None:
        await self.hub.close()
        await self.runtime.close()


async def main() -> None:
    alpha = Shop("alpha", [])
    await alpha.hub.connect()
    await alpha.stock.set("apples", b"10")
    await alpha.stock.set("pears", b"2")

    peers = [str(alpha.hub.channel.stack.find(Tcp).endpoint)]
    beta, gamma = Shop("beta", peers), Shop("gamma", peers)
    for shop in (beta, gamma):
        await shop.hub.connect()
        print(f"{shop.hub.local.name} joined, and has {int(shop.stock['apples'])} apples")

    sold = await asyncio.gather(*(shop.sell("apples") for shop in (alpha, beta, gamma) for _ in range(4)))
    print(f"{len(sold)} customers wanted an apple, {sum(sold)} got one")
    await gamma.stock.delete("pears")
    await alpha.stock.set("closed", b"yes")
    while "closed" not in beta.stock or "closed" not in gamma.stock:  # reads are local, and may be a little behind
        await asyncio.sleep(0.01)
    for shop in (alpha, beta, gamma):
        print(f"{shop.hub.local.name}:", {key: value.decode() for key, value in shop.stock.snapshot().items()})
    for shop in (gamma, beta, alpha):
        await shop.close()


if __name__ == "__main__":
    run(main())
