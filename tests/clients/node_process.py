"""A real `coterie node`, its folder and its port, through all of its lives; and a cable to it that can be cut.

with NodeProcess(folder) as node:
    pika.BlockingConnection(pika.URLParameters(node.url))
    node.kill()      # -9: no word to anybody
    node.start()     # on the same port, with the same folder
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

CUT, END = b"!", b"."
PATIENCE = 60.0
"""Seconds that anything may take here before it counts as stuck."""


class NodeProcess:
    """One node; `start` it again after `kill` or `stop`."""

    def __init__(self, folder: Path, *arguments: str, port: int = 0) -> None:
        self.folder = folder
        self.port = port
        self.lives = 0
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/"

    @property
    def log(self) -> Path:
        """What all of its lives wrote to standard error."""
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self) -> None:
        """Returns when it serves."""
        self.launch()
        process = self._process
        assert process is not None
        assert process.stdout is not None
        text = ""
        while not text.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, f"the node did not start:\n{self.log.read_text()[-3000:]}"
            text += line
        self.port = int(json.loads(text)["amqp"][0].rpartition(":")[2])

    def launch(self) -> None:
        """Returns at once."""
        self.lives += 1
        self.folder.mkdir(parents=True, exist_ok=True)
        where = ("--amqp", f"127.0.0.1:{self.port}", "--console", "", "--data", str(self.folder))
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coterie", "node", "--json", *where, *self._arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def end(self, number: int) -> int:
        process, self._process = self._process, None
        assert process is not None
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
        return process.returncode

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """In good order: clients are told (320)."""
        code = self.end(signal.SIGTERM)
        assert code == 0, f"the node ended with {code}:\n{self.log.read_text()[-3000:]}"

    def __enter__(self) -> NodeProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()


class Cable:
    """Carries bytes between clients and a port; `cut` resets every connection on it, and later ones go through."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._order, self._orders = socket.socketpair()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        while True:
            ready, _, _ = select.select([self._listener, self._orders, *self._pairs], [], [])
            if self._orders in ready:
                order = self._orders.recv(1)
                count = len(self._pairs) // 2
                while self._pairs:
                    self._drop(next(iter(self._pairs)))
                self._orders.send(count.to_bytes(2, "big"))
                if order == END:
                    return
                continue
            if self._listener in ready:
                self._accept()
            for end in ready:
                other = self._pairs.get(end)
                if other is not None and not _pass(end, other):
                    self._drop(end)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs[client], self._pairs[server] = server, client

    def _drop(self, end: socket.socket) -> None:
        other = self._pairs.pop(end)
        del self._pairs[other]
        for each in (end, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
            each.close()

    def cut(self) -> int:
        """How many connections there were."""
        return self._tell(CUT)

    def _tell(self, order: bytes) -> int:
        self._order.send(order)
        return int.from_bytes(self._order.recv(2), "big")

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._tell(END)
        self._thread.join()
        self._listener.close()
        self._order.close()
        self._orders.close()


def _pass(end: socket.socket, other: socket.socket) -> bool:
    try:
        data = end.recv(65536)
        other.sendall(data)
    except OSError:
        return False
    return bool(data)


def eventually(what: str, is_so: object, patience: float = PATIENCE) -> None:
    """Ask until it is so; for what no event tells."""
    assert callable(is_so)
    until = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < until, f"not so after {patience:g} s: {what}"
        time.sleep(0.02)
