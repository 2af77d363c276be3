"""What is in vhosts, and who may do what there: by method and path, as the routes have them."""

from __future__ import annotations

from typing import Final

from coterie.broker.leases import NAME_MAX
from coterie.broker.users import ADMINISTRATOR
from coterie.console.api_access import PERMISSION, TOPICS, USER, VHOST
from coterie.console.api_parameters import GLOBALS, PARAMETER
from coterie.console.api_streams import READ
from coterie.console.api_wiring import BINDINGS, EXCHANGE, QUEUE
from coterie.console.ask import POLICYMAKER
from coterie.console.openapi import bodies
from coterie.console.openapi.operation import Operation, deleted, done, listed, put, set_to, shown, waiting
from coterie.console.openapi.schema import COUNT, FLAG, TEXT, WHOLE, answered, list_of, one_of, ref
from coterie.streams.columns import CONTENT_TYPE

_POSITION: Final = {"type": "integer", "minimum": 0, "maximum": 10**18}
_LEASE: Final = "/api/leases/{vhost}/{name}/{lease}"
_STEP: Final = f"{_LEASE}/{{do:acquire|retire|release|take}}"
Table = dict[tuple[str, str], Operation | dict[str, Operation]]
"""Where a part of a path is one of some words, each word has its own."""

WIRING: Final[Table] = {
    ("GET", "/api/exchanges"): listed("Exchanges of all vhosts", "Exchange"),
    ("GET", "/api/exchanges/{vhost}"): listed("Exchanges of a vhost", "Exchange"),
    ("GET", EXCHANGE): shown("An exchange; amq.default is the nameless one", "Exchange"),
    ("PUT", EXCHANGE): put("Declare an exchange", bodies.EXCHANGE),
    ("DELETE", EXCHANGE): deleted("Delete an exchange", "", **{"if-unused": FLAG}),
    ("GET", f"{EXCHANGE}/bindings/source"): listed("Bindings from an exchange", "Binding"),
    ("GET", f"{EXCHANGE}/bindings/destination"): listed("Bindings to an exchange", "Binding"),
    ("POST", f"{EXCHANGE}/publish"): done(
        "Publish a message", bodies.PUBLISH, answered(routed=FLAG)
    ),
    ("GET", "/api/queues"): listed("Queues of all vhosts", "Queue"),
    ("GET", "/api/queues/{vhost}"): listed("Queues of a vhost", "Queue"),
    ("GET", QUEUE): shown("A queue, with its consumers", "QueueDetail"),
    ("PUT", QUEUE): put("Declare a queue", bodies.QUEUE, "", 409),
    ("DELETE", QUEUE): deleted("Delete a queue", "", 409, **{"if-unused": FLAG, "if-empty": FLAG}),
    ("DELETE", f"{QUEUE}/contents"): deleted("Purge a queue", "", 409),
    ("POST", f"{QUEUE}/move"): done("Move messages to another queue", bodies.MOVE, answered(moved=COUNT), "", 409),
    ("POST", f"{QUEUE}/get"): done("Get messages", bodies.GET, list_of(ref("Got")), "", 409),
    ("GET", f"{QUEUE}/messages"): Operation(
        "Browse messages by their positions", {200: ref("Browsed")}, errors=(409,),
        query={
            "first": _POSITION, "last": _POSITION, "limit": _POSITION, "truncate": _POSITION,
            "encoding": one_of(("auto", "base64")),
        },
    ),
    ("GET", f"{QUEUE}/bindings"): listed("Bindings of a queue", "Binding"),
    ("GET", "/api/bindings"): listed("Bindings of all vhosts", "Binding", default=FLAG),
    ("GET", "/api/bindings/{vhost}"): listed("Bindings of a vhost", "Binding", default=FLAG),
    ("GET", BINDINGS): listed("Bindings between two", "Binding"),
    ("POST", BINDINGS): Operation("Bind; Location names the new one", {201: None}, body=bodies.BINDING, errors=(409,)),
    ("GET", f"{BINDINGS}/{{properties}}"): shown("A binding, by its properties_key", "Binding"),
    ("DELETE", f"{BINDINGS}/{{properties}}"): deleted("Unbind", "", 409),
}  # fmt: skip

STREAMS: Final[Table] = {
    ("GET", "/api/leases"): listed("Named leases", "Lease"),
    ("GET", "/api/leases/{vhost}"): listed("Named leases of a vhost", "Lease"),
    ("GET", "/api/leases/{vhost}/{name}"): listed("Named leases of a queue", "Lease"),
    ("GET", _LEASE): Operation(
        "A lease, with what it holds", {200: ref("LeaseDetail")}, query={"from": _POSITION, "bytes": _POSITION}
    ),
    ("DELETE", _LEASE): deleted(
        "Give back what a lease holds", "", 409, 410, id=_POSITION, session={"type": "string", "maxLength": NAME_MAX}
    ),
    ("POST", _STEP): {
        step: done(f"A step of a lease: {step}", body, "LeaseStep", "", 409, 410)
        for step, body in bodies.LEASE_STEPS.items()
    },
    ("GET", "/api/streams/nodes"): shown("Nodes that can be asked for messages", "Readers"),
    ("GET", "/api/streams/tails"): Operation(
        "How far queues have come", {200: ref("Tails")}, errors=(404,),
        query={"vhost": TEXT, "name": TEXT, "pattern": TEXT, "wait": _POSITION, "ready": _POSITION},
    ),
    ("GET", "/api/streams/cut/{vhost}/{name}"): Operation(
        "How far a queue has come", {200: ref("Tail")}, errors=(409,)
    ),
    ("GET", READ): waiting(Operation(
        "Read a range of messages, by columns", {200: {"type": "string", "format": "binary"}}, errors=(409, 410),
        media=CONTENT_TYPE,
        query={
            "at": {"type": "string", "pattern": r"^[0-9]{1,18}\.[0-9]{1,18}$"}, "incarnation": WHOLE,
            "first": _POSITION, "last": _POSITION, "lease": TEXT, "id": _POSITION, "from": _POSITION, "to": _POSITION,
            "missing": one_of(("error", "skip")),
        },
    )),
}  # fmt: skip

ACCESS: Final[Table] = {
    ("GET", "/api/users"): listed("Users", "User", ADMINISTRATOR),
    ("GET", "/api/users/without-permissions"): listed("Users who may do nothing", "User", ADMINISTRATOR),
    ("POST", "/api/users/bulk-delete"): set_to("Delete several users, or none of them", bodies.USERS, ADMINISTRATOR),
    ("GET", USER): shown("A user", "User", ADMINISTRATOR, own=True),
    ("PUT", USER): put("Add or change a user", bodies.USER, ADMINISTRATOR),
    ("DELETE", USER): deleted("Delete a user; its connections end", ADMINISTRATOR),
    ("GET", f"{USER}/permissions"): listed("Permissions of a user", "Permission", ADMINISTRATOR, own=True),
    ("GET", "/api/permissions"): listed("Permissions", "Permission", ADMINISTRATOR),
    ("GET", PERMISSION): shown("Permissions of a user in a vhost", "Permission", ADMINISTRATOR),
    ("PUT", PERMISSION): put("Set permissions", bodies.PERMISSION, ADMINISTRATOR),
    ("DELETE", PERMISSION): deleted("Take permissions away", ADMINISTRATOR),
    ("GET", f"{USER}/topic-permissions"): listed(
        "Topic permissions of a user", "TopicPermission", ADMINISTRATOR, own=True
    ),
    ("GET", f"{VHOST}/topic-permissions"): listed("Topic permissions in a vhost", "TopicPermission", ADMINISTRATOR),
    ("GET", "/api/topic-permissions"): listed("Topic permissions", "TopicPermission", ADMINISTRATOR),
    ("GET", TOPICS): listed("Topic permissions of a user in a vhost", "TopicPermission", ADMINISTRATOR, own=True),
    ("PUT", TOPICS): put("Set topic permissions", bodies.TOPICS, ADMINISTRATOR),
    ("DELETE", TOPICS): deleted("Take topic permissions away", ADMINISTRATOR),
    ("DELETE", f"{TOPICS}/{{exchange}}"): deleted("Take those of one exchange away", ADMINISTRATOR),
    ("GET", "/api/vhosts"): listed("Vhosts", "Vhost"),
    ("GET", VHOST): shown("A vhost", "Vhost"),
    ("PUT", VHOST): put("Add a vhost; who adds it may use it", None, ADMINISTRATOR),
    ("DELETE", VHOST): deleted("Delete a vhost, with all that is in it", ADMINISTRATOR),
    ("GET", f"{VHOST}/permissions"): listed("Permissions in a vhost", "Permission", ADMINISTRATOR),
    ("GET", f"{VHOST}/connections"): listed("Connections to a vhost", "Connection"),
    ("GET", f"{VHOST}/channels"): listed("Channels of connections to a vhost", "Channel"),
    ("GET", "/api/vhost-limits"): listed("Limits of vhosts", "VhostLimits"),
    ("GET", "/api/vhost-limits/{vhost}"): listed("Limits of a vhost", "VhostLimits"),
    ("PUT", "/api/vhost-limits/{vhost}/{limit}"): set_to("Set a limit of a vhost", bodies.LIMIT, ADMINISTRATOR),
    ("DELETE", "/api/vhost-limits/{vhost}/{limit}"): deleted("Remove a limit of a vhost", ADMINISTRATOR),
    ("GET", "/api/user-limits"): listed("Limits of users", "UserLimits", ADMINISTRATOR),
    ("GET", "/api/user-limits/{user}"): listed("Limits of a user", "UserLimits", ADMINISTRATOR),
    ("PUT", "/api/user-limits/{user}/{limit}"): set_to("Set a limit of a user", bodies.LIMIT, ADMINISTRATOR),
    ("DELETE", "/api/user-limits/{user}/{limit}"): deleted("Remove a limit of a user", ADMINISTRATOR),
    ("PUT", "/api/user-addresses/{user}"): set_to("Say where a user may come from", bodies.ADDRESSES, ADMINISTRATOR),
    ("DELETE", "/api/user-addresses/{user}"): deleted("Let a user come from anywhere", ADMINISTRATOR),
}  # fmt: skip


def _policies(base: str, what: str, tag: str) -> Table:
    return {
        ("GET", base): listed(f"{what}, of all vhosts", "Policy", POLICYMAKER),
        ("GET", f"{base}/{{vhost}}"): listed(f"{what} of a vhost", "Policy", POLICYMAKER),
        ("GET", f"{base}/{{vhost}}/{{name}}"): shown(f"{what}: one of them", "Policy", POLICYMAKER),
        ("PUT", f"{base}/{{vhost}}/{{name}}"): put(f"{what}: set one", bodies.POLICY, tag),
        ("DELETE", f"{base}/{{vhost}}/{{name}}"): deleted(f"{what}: delete one", tag),
    }


POLICIES: Final[Table] = {
    **_policies("/api/policies", "Policies", POLICYMAKER),
    **_policies("/api/operator-policies", "Operator policies", ADMINISTRATOR),
    ("GET", "/api/parameters"): listed("Parameters of all vhosts", "Parameter", POLICYMAKER),
    ("GET", "/api/parameters/{component}"): listed("Parameters of a component", "Parameter", POLICYMAKER),
    ("GET", "/api/parameters/{component}/{vhost}"): listed("The same, in a vhost", "Parameter", POLICYMAKER),
    ("GET", PARAMETER): shown("A parameter", "Parameter", POLICYMAKER),
    ("PUT", PARAMETER): put("Set a parameter", bodies.PARAMETER, ADMINISTRATOR),
    ("DELETE", PARAMETER): deleted("Delete a parameter", ADMINISTRATOR),
    ("GET", GLOBALS): listed("Global parameters", "GlobalParameter", POLICYMAKER),
    ("GET", f"{GLOBALS}/{{name}}"): shown("A global parameter", "GlobalParameter", POLICYMAKER),
    ("PUT", f"{GLOBALS}/{{name}}"): put("Set a global parameter", bodies.GLOBAL_PARAMETER, ADMINISTRATOR),
    ("DELETE", f"{GLOBALS}/{{name}}"): deleted("Delete a global parameter", ADMINISTRATOR),
}
