"""Three members in one process that ask each other: one, all, and whoever answers first.

python examples/rpc.py
"""

import asyncio

from coterie.blocks import Hub, MemberLost, RemoteError, Rpc
from coterie.group.members import Address
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run


class Speller:
    """Spells words. Gamma never gets to the end of long ones."""

    def __init__(self, name: str, peers: list[str]) -> None:
        self.runtime = AioRuntime(name)
        stack = preset("virtual-synchrony", TCP={"bind_port": 0}, STATIC={"peers": peers})
        self.hub = Hub(self.runtime, stack, group="spelling", name=name)
        self.rpc = Rpc(self.hub, "spell", self.spell)
        self.forever = asyncio.Event()

    async def spell(self, caller: Address, word: bytes) -> bytes:
        if not word.isalpha():
            raise ValueError(f"{word.decode()} is no word")
        if len(word) > 10 and self.hub.local.name == "gamma":
            await self.forever.wait()
        return b"-".join(word[n : n + 1] for n in range(len(word)))

    async def close(self) -> None:
        await self.hub.close()
        await self.runtime.close()


async def main() -> None:
    alpha = Speller("alpha", [])
    await alpha.hub.connect()
    peers = [str(alpha.hub.channel.stack.find(Tcp).endpoint)]  # one that is known is enough
    beta, gamma = Speller("beta", peers), Speller("gamma", peers)
    await beta.hub.connect()
    await gamma.hub.connect()
    await alpha.hub.channel.has_members(3)

    print("beta alone:", (await alpha.rpc.call(beta.hub.local, b"tea", timeout=5)).decode())
    try:
        await alpha.rpc.call(beta.hub.local, b"4711", timeout=5)
    except RemoteError as error:
        print("beta alone:", error.text)
    everybody = await alpha.rpc.call_all(b"tea", timeout=5)
    print("all:", ", ".join(member.name for member in sorted(everybody)))
    first = await alpha.rpc.call_first(b"virtualsynchrony", 2, timeout=5)
    print("the first two:", ", ".join(member.name for member in sorted(first)))

    slow = asyncio.create_task(alpha.rpc.call_all(b"virtualsynchrony", timeout=30))
    await asyncio.sleep(0.1)
    await gamma.close()
    for member, answer in sorted((await slow).items()):
        print(f"{member.name}:", "lost" if isinstance(answer, MemberLost) else "answered")
    for speller in (beta, alpha):
        await speller.close()


if __name__ == "__main__":
    run(main())
