"""Three members in one process: one asks all, each answers the one that asked.

python examples/group.py
"""

import asyncio
from collections import Counter

from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import View
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run

TASTES = {"alpha": "tea", "beta": "coffee", "gamma": "tea"}


class Voter(Receiver):
    """Answers a question that was put to all; counts the answers that come to it alone."""

    def __init__(self, name: str) -> None:
        self.taste = TASTES[name]
        self.channel: Channel | None = None
        self.votes: Counter[str] = Counter()
        self.everybody_voted = asyncio.Event()
        self.alone = asyncio.Event()

    def receive(self, batch: list[Delivery]) -> None:
        for sender, messages, to_all, _ in batch:
            for message in messages:
                if to_all:
                    assert self.channel is not None
                    self.channel.send_nowait(self.taste.encode(), sender)
                else:
                    self.votes[bytes(message).decode()] += 1
                    print(f"{sender.name} votes for {bytes(message).decode()}")
        if self.votes.total() == len(TASTES):
            self.everybody_voted.set()

    def view_accepted(self, view: View) -> None:
        if len(view.members) == 1:
            self.alone.set()
        else:
            self.alone.clear()


async def join(runtime: AioRuntime, voter: Voter, name: str, peers: list[str]) -> Channel:
    stack = preset("reliable", TCP={"bind_port": 0}, STATIC={"peers": peers})
    voter.channel = Channel(runtime, stack, group="drinks", name=name, receiver=voter)
    await voter.channel.connect()
    return voter.channel


async def main() -> None:
    runtimes = {name: AioRuntime(name) for name in TASTES}
    voters = {name: Voter(name) for name in TASTES}
    channels: dict[str, Channel] = {}
    peers: list[str] = []
    for name in TASTES:
        channels[name] = await join(runtimes[name], voters[name], name, peers)
        peers = [str(channels["alpha"].stack.find(Tcp).endpoint)]  # one that is known is enough
    alpha = channels["alpha"]
    for channel in channels.values():
        await channel.has_members(len(TASTES))
    print("the group:", ", ".join(member.name for member in alpha.view.members))

    await alpha.send(b"tea or coffee?")
    await voters["alpha"].everybody_voted.wait()
    (winner, most), (_, least) = voters["alpha"].votes.most_common()
    print(f"it is {winner}, {most} to {least}")

    await channels["beta"].close()
    await channels["gamma"].close()
    await voters["alpha"].alone.wait()
    print("alpha is left alone")
    await alpha.close()
    for runtime in runtimes.values():
        await runtime.close()


if __name__ == "__main__":
    run(main())
