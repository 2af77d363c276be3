"""`coterie status`: how a node is, in a few lines; exit code 1 while an alarm is on."""

from __future__ import annotations

import argparse

from coterie.cli.output import duration, facts, print_json
from coterie.cli.remote import Commands, Remote, Shape, as_json, cell
from coterie.errors import CoterieError
from coterie.trace import Json

EXAMPLES = """\
  coterie status                                          of the node on this host
  coterie status --url http://ops@broker:15672            of another one
  coterie status --json | jq .overview.queue_totals       for scripts
  coterie status >/dev/null || page-somebody              exit code 1: an alarm is on, or no node answers
"""
DESCRIPTION = """\
Says how a node is: alarms, clients, queues, rates, memory and disk.
"""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    Commands(subparsers, "status", "how a node is", DESCRIPTION, EXAMPLES, run)


def run(remote: Remote, options: argparse.Namespace) -> int:
    overview = remote.get("overview")
    status, health = remote.request("GET", "/api/health/checks/alarms")
    if not isinstance(overview, dict) or not isinstance(health, dict):
        raise CoterieError(f"{remote.where} answers, but not as a Coterie node would")
    code, answer = remote.request("GET", "/api/nodes")
    nodes = [node for node in answer if isinstance(node, dict)] if code == 200 and isinstance(answer, list) else []
    if as_json(options):
        shown: list[Json] = [*nodes]
        print_json({"status": health.get("status"), "overview": overview, "nodes": shown, "health": health})
    else:
        print(facts(_lines(overview, nodes, health)))
    return 0 if status == 200 else 1


def _lines(overview: Shape, nodes: list[Shape], health: Shape) -> list[tuple[str, str]]:
    def at(key: str, row: Shape = overview) -> object:
        return cell(row, key)

    up = f", up {duration(_number(nodes[0], 'uptime') / 1000)}" if nodes else ""
    lines = [
        ("node", f"{at('node')} ({at('product_name')} {at('product_version')}){up}"),
        ("alarms", "none" if health.get("status") == "ok" else f"{health.get('reason')}: publishers are blocked"),
        (
            "clients",
            f"{at('object_totals.connections')} connections, {at('object_totals.channels')} channels, "
            f"{at('object_totals.consumers')} consumers",
        ),
        (
            "queues",
            f"{at('object_totals.queues')}, with {at('queue_totals.messages_ready')} messages ready and "
            f"{at('queue_totals.messages_unacknowledged')} held by consumers",
        ),
    ]
    held = overview.get("held_back")
    if isinstance(held, dict) and any(held.values()):
        text = f"{held.get('publishing')} connections that publish, {held.get('opening')} that wait to be opened"
        lines.append(("held back", f"{text}, by the rates of their users"))
    if "publish_details" in _stats(overview):
        rates = (f"{name} {at(f'message_stats.{key}_details.rate')}/s" for name, key in RATES)
        lines.append(("rates", ", ".join(rates)))
    for node in nodes:
        held, limit = _number(node, "message_bytes_ram"), _number(node, "mem_limit")
        of = f" of {size(limit)}" if limit else ""
        lines.append(("memory", f"{size(_number(node, 'mem_used'))}; messages {size(held)}{of}"))
        if node.get("disk_free") is not None:
            lines.append(("disk", f"{size(_number(node, 'disk_free'))} free"))
        else:
            lines.append(("disk", "none: nothing survives a restart"))
    return lines


RATES = (("published", "publish"), ("delivered", "deliver_get"), ("acknowledged", "ack"))


def _stats(overview: Shape) -> Shape:
    stats = overview.get("message_stats")
    return stats if isinstance(stats, dict) else {}


def _number(row: Shape, key: str) -> float:
    value = row.get(key)
    return value if isinstance(value, int | float) else 0


def size(count: float) -> str:
    """Bytes as people read them."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
