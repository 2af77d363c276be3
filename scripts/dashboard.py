"""Writes deploy/grafana/coterie.json: the Grafana dashboard, from the list of its panels below.

A dashboard's JSON is long and says little; this is what it says. Change it here, and run it again:

python scripts/dashboard.py
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "deploy" / "grafana" / "coterie.json"
NODES = '{instance=~"$instance"}'
RATE = "[$__rate_interval]"
WIDE, HALF, THIRD, SMALL = 24, 12, 8, 4
"""Columns, of 24."""


@dataclass(frozen=True)
class Panel:
    title: str
    queries: dict[str, str]
    """By legend."""
    unit: str = "short"
    width: int = HALF
    kind: str = "timeseries"
    help: str = ""
    bad_above: float | None = None
    """From where on it is red."""


def total(metric: str) -> str:
    return f"sum(rate({metric}{NODES}{RATE}))"


def quantile(part: float, metric: str) -> str:
    return f"histogram_quantile({part}, sum by (le, instance) (rate({metric}_bucket{NODES}{RATE})))"


def stat(title: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(title, {"": query}, unit, SMALL, "stat", **more)


ROWS: dict[str, list[Panel]] = {
    "At a glance": [
        stat("Nodes that answer", f"count(rabbitmq_build_info{NODES})"),
        stat(
            "Nodes that serve", f"sum(coterie_cluster_serves{NODES}) or count(rabbitmq_build_info{NODES})",
            help="Of a cluster: those that let clients in. Of brokers that stand alone: all that answer.",
        ),
        stat("Voters lost", f"max(coterie_cluster_voters_lost{NODES})", bad_above=1,
             help="Voters that are not in the view, as the node says that sees most of them."),
        stat("Alarms", f"sum(rabbitmq_alarms_memory_used_watermark{NODES}) + "
             f"sum(rabbitmq_alarms_free_disk_space_watermark{NODES})", bad_above=1,
             help="While one is on, publishers are blocked; consumers go on."),
        stat("Messages ready", f"max(rabbitmq_queue_messages_ready{NODES})",
             help="In a cluster every node has every queue: the largest number is taken, not the sum."),
        stat("Messages lost", f"sum(coterie_messages_lost_total{NODES})", bad_above=1,
             help="Messages that the disk did not give back."),
    ],
    "Messages": [
        Panel("In and out", {
            "published": total("rabbitmq_global_messages_received_total"),
            "confirmed": total("rabbitmq_global_messages_confirmed_total"),
            "delivered": total("rabbitmq_global_messages_delivered_total"),
            "acknowledged": total("rabbitmq_global_messages_acknowledged_total"),
        }, "cps", help="By the nodes whose clients these are. Routed and delivered differ where a message goes to "
            "several queues."),
        Panel("In queues", {
            "ready, {{instance}}": f"rabbitmq_queue_messages_ready{NODES}",
            "held by consumers, {{instance}}": f"rabbitmq_queue_messages_unacked{NODES}",
        }, help="In a cluster every node has every queue, and the lines of nodes in step are the same."),
        Panel("Delivered again, returned, refused", {
            "delivered again": total("rabbitmq_global_messages_redelivered_total"),
            "returned as unroutable": total("rabbitmq_global_messages_unroutable_returned_total"),
            "refused by full queues": total("coterie_messages_refused_total"),
        }, "cps"),
        Panel("How messages end otherwise", {
            "dead letters": total("coterie_messages_dead_lettered_total"),
            "rejected": total("coterie_messages_rejected_total"),
            "expired": total("coterie_messages_expired_total"),
            "evicted from full queues": total("coterie_messages_evicted_total"),
            "given back too often": total("coterie_messages_exhausted_total"),
        }, "cps"),
    ],
    "Clients": [
        Panel("What there is", {
            "connections": f"sum(rabbitmq_connections{NODES})",
            "channels": f"sum(rabbitmq_channels{NODES})",
            "queues": f"max(rabbitmq_queues{NODES})",
        }, width=THIRD),
        Panel("Consumers", {"{{instance}}": f"rabbitmq_consumers{NODES}"}, width=THIRD),
        Panel("Connections that come", {
            "accepted": total("coterie_connections_accepted_total"),
            "turned away": total("coterie_connections_turned_away_total"),
        }, "cps", THIRD, help="Many that come and go are clients that do not keep their connections."),
    ],
    "Cluster": [
        Panel("Members in step", {"as {{instance}} sees it": f"coterie_cluster_members_in_step{NODES}"}, width=THIRD),
        Panel("Members behind", {"as {{instance}} sees it": f"coterie_cluster_members_behind{NODES}"}, width=THIRD,
              help="They join or catch up. One that stays so lacks a disk, or time."),
        Panel("Events applied", {"{{instance}}": f"rate(coterie_cluster_log_index{NODES}{RATE})"}, "cps", THIRD,
              help="Of one log: nodes in step have the same rate."),
        Panel("Links to other brokers: messages behind", {
            "{{instance}} to {{to}}": f"coterie_replication_messages_behind{NODES}",
        }),
        Panel("Links that are down", {"{{instance}} to {{to}}": f"coterie_replication_down{NODES}"}, bad_above=1),
    ],
    "The node": [
        Panel("Disk: how long syncs take, p50 and p99", {
            "p50, {{instance}}": quantile(0.5, "coterie_store_sync_seconds"),
            "p99, {{instance}}": quantile(0.99, "coterie_store_sync_seconds"),
        }, "s", help="What publishers with confirms wait for."),
        Panel("How late the event loop is, p99", {"{{instance}}": quantile(0.99, "coterie_event_loop_lag_seconds")},
              "s", help="A node that is late all the time has more to do than one core can."),
        Panel("Memory", {
            "process, {{instance}}": f"rabbitmq_process_resident_memory_bytes{NODES}",
            "bodies of messages, {{instance}}": f"coterie_message_bytes_ram{NODES}",
        }, "bytes"),
        Panel("Disk", {
            "log, {{instance}}": f"coterie_store_bytes{NODES}",
            "free, {{instance}}": f"rabbitmq_disk_space_available_bytes{NODES}",
        }, "bytes"),
        Panel("File descriptors", {
            "open, {{instance}}": f"rabbitmq_process_open_fds{NODES}",
            "limit, {{instance}}": f"rabbitmq_process_max_fds{NODES}",
        }),
        Panel("Not synced yet", {"{{instance}}": f"coterie_store_unsynced_bytes{NODES}"}, "bytes"),
    ],
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": top, "w": WIDE, "h": 1}})  # fmt: skip
        top += 1
        left, height = 0, 8
        for panel in row:
            height = 4 if panel.kind == "stat" else 8
            if left + panel.width > WIDE:
                left, top = 0, top + height
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(_panel(panel, len(panels) + 1, place))
            left += panel.width
        top += height
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    nodes = {
        "name": "instance", "label": "Node", "type": "query", "datasource": SOURCE, "multi": True, "includeAll": True,
        "query": {"query": "label_values(rabbitmq_build_info, instance)", "refId": "nodes"}, "refresh": 2, "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip
    return {
        "title": "Coterie", "uid": "coterie", "tags": ["coterie", "amqp"], "editable": True, "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"}, "refresh": "10s", "timezone": "", "panels": panels,
        "templating": {"list": [source, nodes]}, "annotations": {"list": []},
    }  # fmt: skip


SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad_above is not None:
        steps.append({"color": "red", "value": panel.bad_above})
    targets = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": query, "legendFormat": legend or "__auto"}
        for at, (legend, query) in enumerate(panel.queries.items())
    ]
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
    return {
        "id": number, "type": panel.kind, "title": panel.title, "description": panel.help, "gridPos": place,
        "datasource": SOURCE, "targets": targets, "options": options,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
    }  # fmt: skip


def main() -> int:
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")
    print(f"{sum(len(row) for row in ROWS.values())} panels in {FILE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
