"""Two processes make a group and greet each other. In two terminals:

python examples/hello.py alpha 7801 7802
python examples/hello.py beta 7802 7801
"""

import asyncio
import sys

from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.presets import preset
from coterie.runtime.aio import AioRuntime, run


class Greetings(Receiver):
    def __init__(self) -> None:
        self.senders: set[str] = set()
        self.complete = asyncio.Event()

    def receive(self, batch: list[Delivery]) -> None:
        for sender, messages, *_ in batch:
            for message in messages:
                print(f"{sender.name}: {bytes(message).decode()}", flush=True)
            self.senders.add(sender.name)
        if len(self.senders) == 2:
            self.complete.set()


async def main(name: str, port: int, other: int) -> None:
    runtime, greetings = AioRuntime(name), Greetings()
    stack = preset("reliable", TCP={"bind_port": port}, STATIC={"peers": [f"127.0.0.1:{other}"]})
    channel = Channel(runtime, stack, group="hello", name=name, receiver=greetings)
    await channel.connect(members=2)
    await channel.send(b"hello, everybody")
    await greetings.complete.wait()
    await channel.close()
    await runtime.close()


if __name__ == "__main__":
    run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
