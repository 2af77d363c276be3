"""Brokers as processes, what stands between them on the network, and strangers that want in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pika
from pika.exceptions import AMQPError

from coterie.errors import CoterieError
from coterie.group.channel import Channel, Delivery, Receiver
from coterie.group.members import View
from coterie.group.presets import preset
from coterie.group.protocols.tcp import Tcp
from coterie.runtime.aio import AioRuntime, run
from coterie.secret_file import make_secret_file
from coterie.workers import free_ports

PATIENCE = 60.0


def eventually(what: str, is_so: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Ask until it is so; for what no event tells."""
    until = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < until, f"not so after {patience:g} s: {what}"
        time.sleep(0.02)


class NodeProcess:
    """`coterie node` of a cluster."""

    def __init__(self, folder: Path, name: str, *arguments: str, **environment: str) -> None:
        self._log = folder / f"{name}.log"
        command = [
            sys.executable, "-m", "coterie", "node", "--json", "--name", name, "--amqp", "127.0.0.1:0", *arguments,
        ]  # fmt: skip
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, **environment}
            )
        self.amqp = 0
        self.console = ""

    def up(self) -> None:
        """Wait until it listens."""
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            line = self.process.stdout.readline()
            assert line, f"it did not start: {self.log()}"
            text += line
        told = json.loads(text)
        self.amqp, self.console = int(told["amqp"][0].rpartition(":")[2]), str(told["console"])

    def log(self) -> str:
        return self._log.read_text()

    def channel(self) -> pika.adapters.blocking_connection.BlockingChannel:
        """As soon as it serves."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.amqp)).channel()
            except (AMQPError, OSError):
                assert time.monotonic() < deadline, f"it does not serve: {self.log()}"
                time.sleep(0.05)

    def account(self) -> str:
        """What it says of the cluster and of its queues, and its log: to understand why something has failed."""
        url = f"http://guest:guest@{self.console}"
        asked = [
            subprocess.run(
                [sys.executable, "-m", "coterie", *command, "--url", url],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            for command in (("cluster", "status"), ("queues",), ("consumers",))
        ]
        return "\n".join((*(done.stdout + done.stderr for done in asked), self.log()))

    def memory(self) -> int:
        """Resident, in bytes."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)


class Tap:
    """Listens where a broker says that it is, carries everything on to it, keeps a copy, and alters it if told to."""

    def __init__(self, host: str, port: int) -> None:
        self.heard = bytearray()
        self.connections = 0
        self._alter = 0
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server((host, port))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def alter(self, chunks: int) -> None:
        """Flip a bit in each of the next so many pieces."""
        self._alter = chunks

    @property
    def altered(self) -> bool:
        return self._alter == 0

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                if self._listener.fileno() < 0:
                    return
                near.close()
                continue
            self.connections += 1
            self._open += [near, far]
            for source, to in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, to), daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := bytearray(source.recv(65536)):
                self.heard += data
                if self._alter > 0:
                    self._alter -= 1
                    data[len(data) // 2] ^= 1
                to.sendall(data)
        for each in (source, to):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class Flood:
    """Keeps so many connections to a port that say nothing: one that is closed is replaced at once."""

    def __init__(self, port: int, connections: int) -> None:
        self.turned_away = 0
        self._at, self._most = ("127.0.0.1", port), connections
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Flood:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            while not self._over.is_set():
                for _ in range(self._most - len(selector.get_map())):
                    one = socket.socket()
                    one.setblocking(False)
                    one.connect_ex(self._at)
                    selector.register(one, selectors.EVENT_READ)
                for key, _ in selector.select(0.01):
                    selector.unregister(key.fileobj)
                    cast(socket.socket, key.fileobj).close()
                    self.turned_away += 1
            for key in list(selector.get_map().values()):
                cast(socket.socket, key.fileobj).close()


class Pair:
    """Two brokers with a secret that encrypt, and a tap on the way to each."""

    def __init__(self, folder: Path, encrypt: str = "always") -> None:
        self.secret = make_secret_file(folder / "secret")
        self.ports = free_ports(2)
        hosts = ("127.0.77.1", "127.0.77.2")
        self.taps = [Tap(host, port) for host, port in zip(hosts, self.ports, strict=True)]
        peers = ",".join(f"{host}:{port}" for host, port in zip(hosts, self.ports, strict=True))
        self.nodes = [
            NodeProcess(
                folder, f"node{number}", "--console", "127.0.0.1:0", "--probes", "",
                "--bind", f"127.0.0.1:{port}", "--advertise", host,
                "--peers", peers, "--cluster-size", "2", "--secret-file", str(folder / "secret"), "--encrypt", encrypt,
            )
            for number, (host, port) in enumerate(zip(hosts, self.ports, strict=True), 1)
        ]  # fmt: skip
        for node in self.nodes:
            node.up()

    @property
    def heard(self) -> bytes:
        return b"".join(bytes(tap.heard) for tap in self.taps)

    def pass_on(self, body: bytes) -> None:
        """A message that one broker is given is had from the other one."""
        one, other = (node.channel() for node in self.nodes)
        one.confirm_delivery()
        one.queue_declare("a-queue-by-name", durable=True)
        one.basic_publish("", "a-queue-by-name", body, pika.BasicProperties(delivery_mode=2))
        for method, _, got in other.consume("a-queue-by-name", inactivity_timeout=PATIENCE, auto_ack=True):
            assert method is not None, "\n\n".join(["nothing came", *(node.account() for node in self.nodes)])
            assert got == body
            break
        for channel in (one, other):
            channel.connection.close()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        for tap in self.taps:
            tap.close()


@contextlib.contextmanager
def started(pair: Pair) -> Iterator[Pair]:
    try:
        yield pair
    finally:
        pair.stop()


class Stranger(Receiver):
    """A member of a group, as anybody can build one with the library, that dials somebody else's brokers."""

    def __init__(self, name: str, ports: list[int], incarnation: int = 1, **tcp: object) -> None:
        self.views: list[View] = []
        self.got: list[Delivery] = []
        self.stats: dict[str, int] = {}
        self.peers: list[str] = []
        self._name, self._ports, self._incarnation = name, ports, incarnation
        self._tcp = {"bind_port": 0, "reconnect_min": 0.02, "reconnect_max": 0.05, **tcp}

    def receive(self, batch: list[Delivery]) -> None:
        self.got += batch

    def view_accepted(self, view: View) -> None:
        self.views.append(view)

    def tries(self, times: int) -> None:
        """To get in, until it has failed so many times."""
        run(self._try(times))

    async def _try(self, times: int) -> None:
        runtime = AioRuntime(self._name)
        layers = preset(
            "total-order", TCP=self._tcp,
            STATIC={"peers": [f"127.0.0.1:{port}" for port in self._ports], "interval": 0.05},
        )  # fmt: skip
        channel = Channel(
            runtime, layers, group="coterie", name=self._name, receiver=self, incarnation=self._incarnation
        )
        transport = channel.stack.find(Tcp)
        connecting = asyncio.get_running_loop().create_task(channel.connect(members=2))
        try:
            async with asyncio.timeout(PATIENCE):
                while transport.stats["dials"] < times and not transport.peers():
                    await asyncio.sleep(0.01)
            self.stats, self.peers = dict(transport.stats), [str(peer) for peer in transport.peers()]
        finally:
            connecting.cancel()
            with contextlib.suppress(asyncio.CancelledError, CoterieError):
                await connecting
            await channel.close()
            await runtime.close()

    @property
    def stayed_outside(self) -> bool:
        alone = all(len(view.members) == 1 for view in self.views)
        return alone and not self.got and not self.peers and self.stats["packets_in"] == 0
