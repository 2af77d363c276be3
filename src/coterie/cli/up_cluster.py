"""`coterie up --nodes N`: a cluster on this machine, one process for each broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from coterie.cli.output import print_json
from coterie.config import variable
from coterie.errors import UserError
from coterie.secret_file import make_secret_file, read_secret_file
from coterie.trace import Json
from coterie.workers import free_ports

START_TIMEOUT = 60.0
STOP_TIMEOUT = 45.0
"""Seconds that brokers have to stop: a little more than each gives itself."""
NODES_MAX = 9


def run_many(nodes: int, data: Path | None, port: int, console_port: str | None, as_json: bool) -> int:
    """Start them, say where they are, and stop them when told to. Without a data folder all is gone then."""
    if not 2 <= nodes <= NODES_MAX:
        raise UserError(f"--nodes {nodes}: a cluster on one machine has 2 to {NODES_MAX} brokers; 3 is usual")
    if port + nodes > 65536:
        raise UserError(f"--port {port}: there are no {nodes} ports from there on")
    with tempfile.TemporaryDirectory(prefix="coterie-") as scratch:
        cluster = LocalCluster(nodes, Path(scratch) if data is None else data, port, console_port, data is not None)
        return cluster.run(as_json)


class LocalCluster:
    """The processes."""

    def __init__(self, nodes: int, folder: Path, port: int, console_port: str | None, durable: bool) -> None:
        self._folder = folder
        self._durable = durable
        self._between = self._ports(nodes)
        self._secret = self._secret_file()
        self._amqp = free_ports(nodes) if port == 0 else [port + number for number in range(nodes)]
        self._console = [_console(console_port, port, number) for number in range(nodes)]
        self._probes = [probe_port(port, number) for number in range(nodes)]
        self._processes: list[subprocess.Popen[str]] = []
        self._stopping = False
        self._killed = False
        self._deadline: threading.Timer | None = None

    def _ports(self, nodes: int) -> list[int]:
        """Where brokers reach each other: the same after a restart, as each looks for the others there."""
        file = self._folder / "ports.json"
        if file.exists():
            try:
                ports: list[int] = [int(port) for port in json.loads(file.read_text(encoding="utf-8"))]
            except (OSError, ValueError, TypeError):
                raise UserError(f"{file} does not say at which ports the brokers reach each other: remove it") from None
            if len(ports) != nodes:
                raise UserError(
                    f"{self._folder} holds a cluster of {len(ports)} brokers: start it with --nodes {len(ports)}"
                )
            return ports
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--data {self._folder}: {error.strerror}") from None
        ports = free_ports(nodes)
        file.write_text(json.dumps(ports), encoding="utf-8")
        return ports

    def _secret_file(self) -> list[str]:
        """How the brokers are told the cluster's secret: its file, which is made once; or the environment does."""
        if any(os.environ.get(variable("node", name)) for name in ("secret", "secret_file")):
            return []
        file = self._folder / "secret"
        try:
            make_secret_file(file)
        except FileExistsError:
            read_secret_file(file, "--data")  # one line if it is no good, and not one from each broker
        except OSError as error:
            raise UserError(f"--data {self._folder}: {error.strerror}") from None
        return ["--secret-file", str(file)]

    def run(self, as_json: bool) -> int:
        for told in (signal.SIGTERM, signal.SIGINT):
            signal.signal(told, self._told_to_stop)
        try:
            for number in range(len(self._amqp)):
                self._processes.append(self._start(number))
            signal.signal(signal.SIGHUP, self._pass_on)  # not before: brokers inherit that it is ignored until they can
            found = [_said(process) for process in self._processes]
            for process, each in zip(self._processes, found, strict=True):
                if not each:
                    if self._stopping:
                        return 0
                    raise UserError("a broker did not start: see what it said above")
                each["pid"] = process.pid
            if as_json:
                print_json({"nodes": [*found]})
            else:
                for each in found:
                    amqp = each["amqp"]
                    where = ", ".join(map(str, amqp)) if isinstance(amqp, list) else amqp
                    print(f"{each['name']}: AMQP {where}, console {each['console'] or 'none'}")
                print("Ctrl-C stops them all", flush=True)
            self._wait_until_all_serve(as_json)
            codes = [process.wait() for process in self._processes]
        finally:
            self._stop()
        return 0 if self._stopping and not self._killed else max(1, *codes)

    def _start(self, number: int) -> subprocess.Popen[str]:
        peers = ",".join(f"127.0.0.1:{port}" for port in self._between)
        command = [
            sys.executable, "-m", "coterie", "node", "--json", "--name", f"node{number + 1}",
            "--amqp", f"localhost:{self._amqp[number]}", "--console", self._console[number],
            "--probes", f"localhost:{self._probes[number]}",
            "--bind", f"127.0.0.1:{self._between[number]}", "--peers", peers,
            "--cluster-size", str(len(self._amqp)), *self._secret,
        ]  # fmt: skip
        if self._durable:
            command += ["--data", str(self._folder / f"node{number + 1}")]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)

    def _wait_until_all_serve(self, as_json: bool) -> None:
        if not all(_said(process) for process in self._processes):
            return  # one has ended
        if as_json:
            print_json({"serves": True})
        else:
            print("All brokers serve", flush=True)

    def _told_to_stop(self, number: int, frame: FrameType | None) -> None:
        """The first time in good order, within a time; the second time at once."""
        if self._stopping:
            self._kill("killed")
            return
        self._stopping = True
        self._terminate()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Each broker loads its certificates again."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)

    def _terminate(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        if self._deadline is None:
            self._deadline = threading.Timer(STOP_TIMEOUT, self._kill, [f"did not stop in {STOP_TIMEOUT:g} s: killed"])
            self._deadline.daemon = True
            self._deadline.start()

    def _kill(self, why: str) -> None:
        for number, process in enumerate(self._processes, 1):
            if process.poll() is None:
                os.write(2, f"coterie: node{number} {why}\n".encode())  # a signal may come while something is printed
                self._killed = True
                process.kill()

    def _stop(self) -> None:
        self._terminate()
        for process in self._processes:
            process.wait()
        assert self._deadline is not None
        self._deadline.cancel()


def _console(given: str | None, amqp: int, number: int) -> str:
    if given == "":
        return ""
    if given is not None:
        if not given.isdecimal():
            raise UserError(f"--console-port {given} is no port")
        return f"localhost:{int(given) + number if int(given) else 0}"
    return f"localhost:{amqp + 10_000 + number if 0 < amqp <= 55_000 else 0}"


def probe_port(amqp: int, number: int = 0) -> int:
    """Of probes and metrics: 15692 for 5672, as in RabbitMQ; 0: a free one."""
    return amqp + 10_020 + number if 0 < amqp <= 55_000 else 0


def _said(process: subprocess.Popen[str]) -> dict[str, Json]:
    """The next JSON object that a broker prints; an empty one: it has ended."""
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or lines[-1] != "}\n":
        line = process.stdout.readline()
        if not line:
            return {}
        lines.append(line)
    found: dict[str, Json] = json.loads("".join(lines))
    return found
