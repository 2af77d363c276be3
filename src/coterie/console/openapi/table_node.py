"""The node, the cluster, clients, health checks, what needs no login: by method and path, as the routes have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from coterie.broker.users import ADMINISTRATOR
from coterie.console.api_health import CHECKS, UNITS
from coterie.console.api_live import SHOWN
from coterie.console.ask import MONITORING
from coterie.console.metrics import CONTENT_TYPE
from coterie.console.openapi import bodies
from coterie.console.openapi.operation import Operation, checked, deleted, done, listed, openly, shown
from coterie.console.openapi.schema import FLAG, TABLE, TEXT, Schema, answered, list_of, one_of, optional, ref
from coterie.console.openapi.table_objects import ACCESS, POLICIES, STREAMS, WIRING, Table
from coterie.logs import LEVELS

_NUMBER: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}

NODE: Final[Table] = {
    ("GET", "/api/openapi.json"): Operation("This description", {200: TABLE, 304: None}),
    ("GET", "/api/overview"): shown("The node as a whole; of one's own vhosts, without the tag monitoring", "Overview"),
    ("GET", "/api/nodes"): shown("Nodes: each knows itself alone", list_of(ref("Node")), MONITORING),
    ("GET", "/api/nodes/{name}"): shown("A node", "Node", MONITORING),
    ("GET", "/api/nodes/{name}/memory"): shown("What a node's memory holds", "Memory", MONITORING),
    ("GET", "/api/whoami"): shown("Who asks", answered(name=TEXT, tags=list_of(TEXT))),
    ("GET", "/api/cluster-name"): shown("What RabbitMQ calls the cluster's name", answered(name=TEXT)),
    ("GET", "/api/definitions"): shown("All definitions", TABLE, ADMINISTRATOR),
    ("POST", "/api/definitions"): done("Import definitions", bodies.DEFINITIONS, "Imported", ADMINISTRATOR),
    ("GET", "/api/definitions/{vhost}"): shown("Definitions of a vhost", TABLE, ADMINISTRATOR),
    ("POST", "/api/definitions/{vhost}"): done(
        "Import definitions of a vhost", bodies.VHOST_DEFINITIONS, "Imported", ADMINISTRATOR
    ),
    ("GET", "/api/log"): shown(
        "The last lines of the log", "Log", MONITORING, level=one_of(LEVELS), name=TEXT, after=_NUMBER, limit=_NUMBER
    ),
    ("GET", "/api/tracing"): shown("Whether the node publishes its trace", "Tracing", MONITORING),
    ("PUT", "/api/tracing"): done("Publish the trace, or stop it", bodies.TRACING, "Tracing", ADMINISTRATOR, 409),
    ("GET", "/api/security"): shown("What is unsafe about the node", "Security", ADMINISTRATOR),
    ("GET", "/api/extensions"): shown("Extensions of a page: none", {"type": "array", "maxItems": 0}),
    ("GET", "/api/auth"): openly(shown(
        "Whether tokens are accepted, and whose",
        answered(oauth_enabled=FLAG, oauth_issuer=optional(TEXT), oauth_resource_server_id=optional(TEXT)),
    )),
    ("GET", "/api/feature-flags"): listed("Features that RabbitMQ has flags for", "FeatureFlag"),
    ("PUT", "/api/feature-flags/{name}/enable"): Operation("Enable one: it is", {204: None}, ADMINISTRATOR),
    ("GET", "/api/live"): shown("How the node is, as of the last sample", "Live", since=_NUMBER),
    ("POST", "/api/backups"): done("A cut of everything on disk, to be copied", None, "Backup", ADMINISTRATOR, 409),
    ("GET", "/api/backups/{id}/{name}"): Operation(
        "Some bytes of a file of a cut", {200: TEXT}, ADMINISTRATOR, query={"from": _NUMBER, "size": _NUMBER},
        media="application/octet-stream",
    ),
    ("DELETE", "/api/backups/{id}"): deleted("A cut is not needed any more", ADMINISTRATOR),
}  # fmt: skip

CLUSTER: Final[Table] = {
    ("GET", "/api/cluster"): shown("The cluster as this node sees it", "Cluster", MONITORING),
    ("GET", "/api/cluster/owners"): listed("Who gives out the messages of queues", "Holders"),
    ("GET", "/api/cluster/owners/{vhost}"): listed("The same, of a vhost", "Holders"),
    ("POST", "/api/cluster/forget"): done(
        "A voter votes no more", bodies.FORGET, answered(forgotten=TEXT, voters=list_of(TEXT)), ADMINISTRATOR, 404, 409
    ),
    ("POST", "/api/cluster/drain"): done("Hand over and leave", None, "Cluster", ADMINISTRATOR, 409),
    ("GET", "/api/replication"): shown("Links to other brokers", list_of(ref("Link")), MONITORING),
    ("GET", "/api/replication/queues"): listed("Queues that follow others", "Follower"),
    ("GET", "/api/replication/queues/{vhost}"): listed("The same, of a vhost", "Follower"),
    ("POST", "/api/replication/queues/{vhost}/{name}/promote"): done(
        "A queue follows no more", None, answered(promoted=TEXT), "", 409
    ),
}

CLIENTS: Final[Table] = {
    ("GET", "/api/connections"): listed("Connections", "Connection"),
    ("GET", "/api/connections/{name}"): shown("A connection", "Connection"),
    ("DELETE", "/api/connections/{name}"): deleted("Close a connection; X-Reason says why"),
    ("GET", "/api/connections/{name}/channels"): listed("Channels of a connection", "Channel"),
    ("GET", "/api/connections/username/{user}"): listed("Connections of a user", "Connection"),
    ("DELETE", "/api/connections/username/{user}"): deleted("Close all connections of a user"),
    ("GET", "/api/channels"): listed("Channels", "Channel"),
    ("GET", "/api/channels/{name}"): shown("A channel, with its consumers", "ChannelDetail"),
    ("GET", "/api/consumers"): listed("Consumers", "Consumer"),
    ("GET", "/api/consumers/{vhost}"): listed("Consumers of a vhost", "Consumer"),
}

HEALTH: Final[Table] = {
    ("GET", f"{CHECKS}/alarms"): checked("No alarm is on, anywhere"),
    ("GET", f"{CHECKS}/local-alarms"): checked("No alarm is on, here"),
    ("GET", f"{CHECKS}/port-listener/{{port}}"): checked("The node listens on a port"),
    ("GET", f"{CHECKS}/protocol-listener/{{protocol}}"): checked("The node speaks a protocol"),
    ("GET", f"{CHECKS}/virtual-hosts"): checked("All vhosts run"),
    ("GET", f"{CHECKS}/node-is-quorum-critical"): checked("There is a majority without this node"),
    ("GET", f"{CHECKS}/node-is-mirror-sync-critical"): checked("Another node has everything"),
    ("GET", f"{CHECKS}/certificate-expiration/{{within}}/{{unit}}"): checked(
        f"No certificate ends within so many {', '.join(UNITS)}"
    ),
    ("GET", "/api/aliveness-test/{vhost}"): checked("A message goes through a queue of a vhost"),
    ("GET", "/api/healthchecks/node"): checked("The node serves"),
    ("GET", "/api/healthchecks/node/{name}"): checked("A node serves"),
}

LOGIN: Final[Table] = {
    ("POST", "/api/session"): openly(Operation(
        "Log in: the answer sets the cookie and tells the token", {201: ref("Session")}, body=bodies.LOGIN, needed=True
    )),
    ("GET", "/api/session"): shown("Who is logged in", "Session"),
    ("DELETE", "/api/session"): deleted("Log out"),
}  # fmt: skip

METRICS: Final[Table] = {
    ("GET", "/metrics"): Operation("Metrics, for Prometheus", {200: TEXT}, MONITORING, media=CONTENT_TYPE),
    ("GET", "/metrics/per-object"): Operation(
        "The same, with each queue and client", {200: TEXT}, MONITORING, media=CONTENT_TYPE
    ),
}

OPEN: Final[Table] = {
    ("GET", "/"): openly(Operation("The page", {200: TEXT, 304: None}), "text/html"),
    ("GET", "/static/{path:.+}"): openly(Operation("A file of the page", {200: TEXT, 304: None}), "*/*"),
}


def _live(tables: Table) -> Table:
    """What stands beside /api/live."""
    found: Table = {}
    for (method, path), operation in tables.items():
        if method == "GET" and path in SHOWN and isinstance(operation, Operation):
            schema = answered(live=ref("Live"), shown=operation.answers[200] or {})
            both = replace(
                operation, summary=f"{operation.summary}; and how the node is", answers={200: schema},
                query=operation.query | {"since": _NUMBER},
            )  # fmt: skip
            found[method, f"/api/live{path.removeprefix('/api')}"] = both
    return found


_TAGGED: Final[dict[str, Table]] = {
    "node": NODE, "cluster": CLUSTER, "clients": CLIENTS, "wiring": WIRING, "streams": STREAMS, "access": ACCESS,
    "policies": POLICIES, "health": HEALTH, "login": LOGIN, "metrics": METRICS, "open": OPEN,
}  # fmt: skip
OPERATIONS: Final[dict[str, Table]] = {
    **_TAGGED, "live": _live({key: operation for table in _TAGGED.values() for key, operation in table.items()}),
}  # fmt: skip
"""By what they are about."""
