"""`coterie node`: one broker, until it is told to stop; `coterie up`: a broker in one word, for a laptop or a test."""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import signal
import threading
from pathlib import Path

from coterie import logs
from coterie.cli.output import print_json
from coterie.cli.up_cluster import probe_port, run_many
from coterie.cluster.member import Member
from coterie.config import SECTIONS, Config, add_flags, flags_of, load_config, variable
from coterie.errors import UserError
from coterie.node.naming import default_name
from coterie.node.node import Node, NodeConfig
from coterie.runtime.aio import Segments, descriptors
from coterie.runtime.aio import run as run_loop
from coterie.trace import Json

STOP_MAX = 40.0
"""Seconds after which a node that was told to stop is ended by force."""
NODE_DESCRIPTION = """\
Runs one broker for AMQP 0-9-1 clients until it gets SIGTERM or Ctrl-C: then its clients are told, what is not on disk
is written, and it ends. A second signal ends it at once. SIGHUP loads the TLS certificates again. Settings come from a
TOML file, from the environment and from flags; later ones win.
"""
NODE_EPILOG = """\
examples:
  coterie node --data /var/lib/coterie                    keeps queues and persistent messages in that folder
  coterie node --config node.toml                         everything from a file; `coterie settings` lists what there is
  coterie node --cluster-size 3 --bind 10.0.0.1:7800 --peers 10.0.0.2:7800,10.0.0.3:7800 \\
      --secret-file /etc/coterie/secret --data /var/lib/coterie
                                                          one of a cluster; `coterie cluster init` makes the secret
  coterie node --amqps 0.0.0.0:5671 --tls-cert cert.pem --tls-key key.pem --data /var/lib/coterie
                                                          for clients on other hosts; guest may not, so make a user
  COTERIE_LISTEN_AMQP=127.0.0.1:5673 coterie node         the same by the environment

exit codes: 0 it was stopped in good order; 1 it failed, or did not end in time; 2 a setting is wrong, or a port or
folder cannot be had
"""
UP_EPILOG = """\
examples:
  coterie up                       AMQP on 127.0.0.1:5672; everything is gone when it stops
  coterie up --data ./broker       persistent messages and durable queues come back
  coterie up --port 5680           somewhere else, its console on port 15680, its probes and metrics on 15700
  coterie up --nodes 3                a cluster on this machine: AMQP on 5672, 5673, 5674, consoles on 15672, ...
  coterie status                   in another terminal: how it is

Ctrl-C or SIGTERM stops it. SIGHUP, which comes when its terminal is closed too, does not: it loads certificates again.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = subparsers.add_parser(
        "node",
        help="run one broker",
        description=NODE_DESCRIPTION,
        epilog=NODE_EPILOG,
        formatter_class=raw,
        allow_abbrev=False,  # --secret is no short form of --secret-file: who writes it means a secret
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file")
    parser.add_argument(
        "--json",
        action="store_true",
        help="say as one JSON object where it listens, and in a cluster as another one that it serves",
    )
    for section in SECTIONS:
        add_flags(parser, section)
    parser.set_defaults(run=run_node)
    parser = subparsers.add_parser("up", help="a broker in one word", epilog=UP_EPILOG, formatter_class=raw)
    parser.add_argument("--nodes", type=int, default=1, help="how many (default: %(default)s)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="what must survive a restart (default: nothing does)")
    parser.add_argument("--port", type=int, default=5672, help="of AMQP (default: %(default)s)")
    parser.add_argument(
        "--console-port", metavar="PORT",
        help="of the HTTP API: 0 takes a free one, '' has none (default: that of AMQP and 10000, so 15672)",
    )  # fmt: skip
    parser.add_argument(
        "--json",
        action="store_true",
        help="say as one JSON object where it listens, and in a cluster as another one that it serves",
    )
    parser.set_defaults(run=run_up)


def run_node(options: argparse.Namespace) -> int:
    config = load_config(options.config, os.environ, flags_of(options))
    return _serve(config, options.json)


def run_up(options: argparse.Namespace) -> int:
    if not 0 <= options.port <= 65535:
        raise UserError(f"--port {options.port} is no port")
    if options.nodes != 1:
        return run_many(options.nodes, options.data, options.port, options.console_port, options.json)
    listen: dict[str, object] = {"amqp": f"localhost:{options.port}"}
    if options.console_port is not None or variable("listen", "console") not in os.environ:
        listen["console"] = _console(options.console_port, options.port)
    if variable("listen", "probes") not in os.environ:
        listen["probes"] = f"localhost:{probe_port(options.port)}"
    flags: dict[str, dict[str, object]] = {"listen": listen}
    if options.data is not None:
        flags["node"] = {"data": str(options.data)}
    return _serve(load_config(None, os.environ, flags), options.json)


def _console(port: str | None, amqp: int) -> str:
    """Where the console listens; nothing: nowhere."""
    if port is None:
        number = amqp + 10_000 if 0 < amqp <= 55_535 else 0
    elif not port:
        return ""
    elif port.isdecimal() and int(port) <= 65535:
        number = int(port)
    else:
        raise UserError(f"--console-port {port} is no port")
    return f"localhost:{number}"


def _serve(config: Config, as_json: bool) -> int:
    data = Path(config.node.data).absolute() if config.node.data else None
    if data is not None:
        try:
            data.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--data {data}: {error.strerror}") from None
    parts = node_config(config)
    logs.setup(config.node.log_level, config.node.log_format, node=parts.name)
    descriptors.raise_limit()
    run_loop(_until_stopped(parts, as_json))
    return 0


def node_config(config: Config) -> NodeConfig:
    """What a node is told, of what was configured."""
    data = Path(config.node.data).absolute() if config.node.data else None
    name = config.node.name or default_name(data, config.listen.amqp or config.listen.amqps)
    trace = Path(config.node.trace).absolute() if config.node.trace else None
    seconds = config.node.trace_segment_seconds
    segments = Segments(seconds, config.node.trace_segment_bytes) if seconds else None
    return NodeConfig(
        name, data, config.listen, config.broker, config.amqp, config.store, config.users, config.console,
        config.cluster, config.replication, config.audit, config.group_port, config.node.group, trace, segments,
        config.node.trace_publish, config.node.trace_hold,
        secret_file=config.node.secret_file, guest=False, oauth=config.oauth,
    )  # fmt: skip


async def _until_stopped(config: NodeConfig, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):  # a second one ends the process at once
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        _end_anyway(STOP_MAX)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    node = Node(config)
    loop.add_signal_handler(signal.SIGHUP, node.certificates.reload)
    try:
        starting = loop.create_task(node.start())
        await asyncio.wait((starting, stopped := loop.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # it may wait for its store, or for others, for long
            starting.cancel()
            return
        starting.result()
        if as_json:
            console = None if node.console is None else str(node.console.endpoint)
            probes = None if node.probes is None else str(node.probes.endpoint)
            amqp: list[Json] = [str(endpoint) for endpoint in node.endpoints]
            print_json({"name": config.name, "amqp": amqp, "console": console, "probes": probes})
            if node.member is not None:
                _say_when_it_serves(node.member)
        await stopped
    finally:
        await node.stop()


def _end_anyway(seconds: float) -> None:
    """Whatever hangs, a disk or a thread: the process ends by then, and says where it hung."""

    def end() -> None:
        logs.Log(__name__).error("the node does not end by itself: it is ended by force", seconds=seconds)
        faulthandler.dump_traceback()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _say_when_it_serves(member: Member) -> None:
    """One of a cluster listens before it serves: it must find the others, and may have to be updated."""
    said = False

    def look() -> None:
        nonlocal said
        if member.replica.serves and not said:
            said = True
            print_json({"serves": True})

    member.changed.append(look)
    look()
