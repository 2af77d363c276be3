"""Our own brokers as `bench broker` starts them: one that stands alone, or a cluster; processes with data folders.

They end with the `with` block, at once and whatever happened, and their folder with them.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import Any

from coterie.errors import CoterieError, UserError
from coterie.secret_file import make_secret_file
from coterie.workers import Message, Worker, free_ports

START_TIMEOUT = 60.0
CONSOLE_TIMEOUT = 10.0
LOOK_AGAIN = 0.01
_LISTENS = "0A"
"""The state of a socket, as the kernel's tables write it."""


def scratch(data: Path | None) -> Path:
    """A new folder for what brokers write: in `data`, or where the system has its temporary files."""
    try:
        return Path(tempfile.mkdtemp(prefix="coterie-bench-", dir=data))
    except OSError as error:
        raise UserError(f"--data {data}: {error.strerror}: name a folder that is there and can be written") from None


@contextmanager
def working(module: str, arguments: Message | None = None) -> Iterator[tuple[Worker, Message]]:
    """A worker and its first words. It is not asked whether it may end: there is nothing in it to keep."""
    worker = Worker(module, arguments or {}, spared=True)
    try:
        yield worker, worker.hear()
    finally:
        worker.kill()
        worker.end()


def resident(pid: int) -> float:
    """Memory of a process, in MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def listener(port: int) -> int | None:
    """The process that listens there; None: it cannot be told, as it is another user's."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as file:
            rows = [line.split() for line in file][1:]
        inodes |= {f"socket:[{row[9]}]" for row in rows if row[3] == _LISTENS and int(row[1][-4:], 16) == port}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and any(os.readlink(each) in inodes for each in (entry / "fd").iterdir()):
                return int(entry.name)
        except OSError:
            continue  # it has ended, or is none of our business
    return None


class Node:
    """One broker. `start` it again after `kill`: ports and folder stay what they are."""

    def __init__(self, name: str, port: int, arguments: Sequence[str], log: Path) -> None:
        self.name = name
        self.port = port
        """Of AMQP; its clients are let in as soon as it serves, which is later than `up`."""
        self.console = ""
        self._arguments = arguments
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Returns at once; the time at which it was started."""
        command = [sys.executable, "-m", "coterie", "node", "--json", "--name", self.name, *self._arguments]
        began = time.monotonic()
        with self._log.open("ab") as log:
            # Ctrl-C is for the benchmark, which ends them.
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        return began

    def up(self) -> None:
        """Wait until clients can knock."""
        assert self._process is not None
        assert self._process.stdout is not None
        timer = Timer(START_TIMEOUT, self._process.kill)
        timer.start()
        lines: list[str] = []
        try:
            while not lines or lines[-1] != "}\n":
                line = self._process.stdout.readline()
                if not line:
                    raise CoterieError(f"{self.name} did not start: {self._last_words()}")
                lines.append(line)
        finally:
            timer.cancel()
        found: Message = json.loads("".join(lines))
        self.console = found["console"] or ""

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1] if lines else f"it said nothing in {START_TIMEOUT:g} s"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def memory(self) -> float:
        return resident(self.pid)

    def cpu(self) -> float:
        """Processor time so far, in seconds."""
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """With -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


class Nodes:
    """A broker that stands alone (`dispatch` is empty), or `count` clustered ones."""

    def __init__(
        self,
        name: str,
        count: int,
        dispatch: str,
        data: Path | None,
        size: int = 0,
        consoles: bool = False,
        encrypt: bool = False,
    ) -> None:
        """`size`: with how many the cluster begins, if not with all. `encrypt`: what they tell each other."""
        self.name = name
        self._folder = scratch(data)
        ports = free_ports(2 * count)
        amqp, between = ports[:count], ports[count:]
        clustered = ["--peers", ",".join(f"127.0.0.1:{port}" for port in between)]
        clustered += ["--cluster-size", str(size or count), "--cluster-dispatch", dispatch]
        if encrypt:
            make_secret_file(self._folder / "secret")
            clustered += ["--secret-file", str(self._folder / "secret"), "--encrypt", "always"]
        self.each: list[Node] = []
        for number in range(count):
            own = f"node{number + 1}"
            arguments = [
                "--amqp", f"127.0.0.1:{amqp[number]}", "--console", "127.0.0.1:0" if consoles else "",
                "--probes", "",
                "--data", str(self._folder / own),
            ]  # fmt: skip
            if dispatch:
                arguments += ["--bind", f"127.0.0.1:{between[number]}", *clustered]
            self.each.append(Node(own, amqp[number], arguments, self._folder / f"{own}.log"))

    @property
    def ports(self) -> list[int]:
        return [node.port for node in self.each]

    def start(self, count: int | None = None) -> None:
        """So many of them, or all; they are up, and will serve in a moment."""
        for node in self.each[:count]:
            node.start()
        for node in self.each[:count]:
            node.up()

    def memory(self) -> float:
        """MiB of the largest."""
        return max(node.memory() for node in self.each)

    def cpu(self) -> float:
        return sum(node.cpu() for node in self.each)

    def oldest(self, asked: Node) -> Node:
        """Who keeps the time and updates others, as one of them sees it."""
        names = {member["name"] for member in _members(asked) if member["oldest"]}
        for node in self.each:
            if node.name in names:
                return node
        raise CoterieError(f"{asked.name} does not know who is the oldest broker of the cluster")

    def wait_in_step(self, node: Node, patience: float) -> None:
        """Until it has everything, as it says itself."""
        deadline = time.monotonic() + patience
        while not any(member["this"] and member["state"] == "in step" for member in _members(node)):
            if time.monotonic() > deadline:
                raise CoterieError(f"{node.name} was not in step after {patience:g} s")
            time.sleep(LOOK_AGAIN)

    def __enter__(self) -> Nodes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for node in self.each:
            node.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _members(asked: Node) -> list[dict[str, Any]]:
    request = urllib.request.Request(f"http://{asked.console}/api/cluster")
    request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
    with urllib.request.urlopen(request, timeout=CONSOLE_TIMEOUT) as answer:
        members: list[dict[str, Any]] = json.load(answer)["members"]
    return members
