"""Three members in one process share a printer: one at a time, in turn, and whoever leaves with the lock gives it up.

python examples/lock.py
"""

import asyncio

from coterie.blocks import Hub, LockLost, SharedLock, Token
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run


class Printer:
    """The thing behind the lock. It refuses whoever comes with an older token than it has seen."""

    def __init__(self) -> None:
        self.newest = Token(0, 0, 0)
        self.busy = False

    async def print_page(self, token: Token, text: str) -> None:
        assert not self.busy
        if token < self.newest:
            raise LockLost("somebody else has the printer")
        self.newest, self.busy = token, True
        await asyncio.sleep(0.01)
        print(text)
        self.busy = False


class Clerk:
    def __init__(self, name: str, peers: list[str]) -> None:
        self.runtime = AioRuntime(name)
        stack = preset("total-order", TCP={"bind_port": 0}, STATIC={"peers": peers})
        self.hub = Hub(self.runtime, stack, group="office", name=name)
        self.lock = SharedLock(self.hub, "printer")

    async def work(self, printer: Printer) -> None:
        async with self.lock as lease:
            for page in (1, 2):
                await printer.print_page(lease.token, f"{self.hub.local.name}: page {page}")

    async def close(self) -> None:
        await self.hub.close()
        await self.runtime.close()


async def main() -> None:
    printer = Printer()
    alpha = Clerk("alpha", [])
    await alpha.hub.connect()
    peers = [str(alpha.hub.channel.stack.find(Tcp).endpoint)]
    beta, gamma = Clerk("beta", peers), Clerk("gamma", peers)
    await beta.hub.connect()
    await gamma.hub.connect()

    await asyncio.gather(*(clerk.work(printer) for clerk in (alpha, beta, gamma)))

    old = await gamma.lock.acquire()
    print("gamma takes the lock and goes home")
    waiting = asyncio.create_task(beta.lock.acquire())
    await gamma.close()
    new = await waiting
    print("beta has it now, and its token is larger:", new.token > old.token)
    await printer.print_page(new.token, "beta: page 3")
    try:
        await printer.print_page(old.token, "gamma: page 3")
    except LockLost as error:
        print("gamma is refused:", error)
    await new.release()
    await beta.close()
    await alpha.close()


if __name__ == "__main__":
    run(main())
