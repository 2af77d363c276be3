"""What operators change over HTTP, for the audit log: which action a request is, and what of it is told.

Every request that may change something has a line, whether it succeeded, was refused or failed; of the others, those
that were refused. Of what a body says only the keys that are named here are told: no password, and no hash.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from aiohttp import web

from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.auditlog.log import DONE, FAILED, REFUSED
from coterie.console.ask import Ask, Refused
from coterie.errors import CoterieError, ProtocolError

if TYPE_CHECKING:
    from coterie.console.import_plan import Plan

CHANGED: Final = "*"
"""In an action: `created`, or `changed` if it was there before."""
ACTIONS: Final[dict[tuple[str, str], str]] = {
    ("PUT", "/api/users/{user}"): f"user.{CHANGED}",
    ("DELETE", "/api/users/{user}"): "user.deleted",
    ("POST", "/api/users/bulk-delete"): "users.deleted",
    ("PUT", "/api/permissions/{vhost}/{user}"): "permission.set",
    ("DELETE", "/api/permissions/{vhost}/{user}"): "permission.cleared",
    ("PUT", "/api/topic-permissions/{vhost}/{user}"): "topic_permission.set",
    ("DELETE", "/api/topic-permissions/{vhost}/{user}"): "topic_permission.cleared",
    ("DELETE", "/api/topic-permissions/{vhost}/{user}/{exchange}"): "topic_permission.cleared",
    ("PUT", "/api/vhosts/{vhost}"): f"vhost.{CHANGED}",
    ("DELETE", "/api/vhosts/{vhost}"): "vhost.deleted",
    ("PUT", "/api/vhost-limits/{vhost}/{limit}"): "vhost_limit.set",
    ("DELETE", "/api/vhost-limits/{vhost}/{limit}"): "vhost_limit.cleared",
    ("PUT", "/api/user-limits/{user}/{limit}"): "user_limit.set",
    ("DELETE", "/api/user-limits/{user}/{limit}"): "user_limit.cleared",
    ("PUT", "/api/user-addresses/{user}"): "user_addresses.set",
    ("DELETE", "/api/user-addresses/{user}"): "user_addresses.cleared",
    ("POST", "/api/definitions"): "definitions.imported",
    ("POST", "/api/definitions/{vhost}"): "definitions.imported",
    ("DELETE", "/api/connections/{name}"): "connection.closed",
    ("DELETE", "/api/connections/username/{user}"): "connection.closed",
    ("POST", "/api/backups"): "backup.begun",
    ("DELETE", "/api/backups/{id}"): "backup.ended",
    ("POST", "/api/cluster/forget"): "cluster.forgotten",
    ("POST", "/api/cluster/drain"): "cluster.drained",
    ("PUT", "/api/feature-flags/{name}/enable"): "feature_flag.enabled",
    ("DELETE", "/api/leases/{vhost}/{name}/{lease}"): "lease.ended",
    ("POST", "/api/leases/{vhost}/{name}/{lease}/{do}"): "lease.",
    ("POST", "/api/exchanges/{vhost}/{name}/publish"): "message.published",
    ("POST", "/api/queues/{vhost}/{name}/get"): "message.got",
    ("PUT", "/api/parameters/{component}/{vhost}/{name}"): "parameter.set",
    ("DELETE", "/api/parameters/{component}/{vhost}/{name}"): "parameter.cleared",
    ("PUT", "/api/global-parameters/{name}"): "parameter.set",
    ("DELETE", "/api/global-parameters/{name}"): "parameter.cleared",
    ("PUT", "/api/policies/{vhost}/{name}"): f"policy.{CHANGED}",
    ("DELETE", "/api/policies/{vhost}/{name}"): "policy.deleted",
    ("PUT", "/api/operator-policies/{vhost}/{name}"): f"operator_policy.{CHANGED}",
    ("DELETE", "/api/operator-policies/{vhost}/{name}"): "operator_policy.deleted",
    ("POST", "/api/replication/queues/{vhost}/{name}/promote"): "queue.promoted",
    ("DELETE", "/api/session"): "session.ended",
    ("PUT", "/api/tracing"): "tracing.switched",
    ("PUT", "/api/exchanges/{vhost}/{name}"): f"exchange.{CHANGED}",
    ("DELETE", "/api/exchanges/{vhost}/{name}"): "exchange.deleted",
    ("PUT", "/api/queues/{vhost}/{name}"): f"queue.{CHANGED}",
    ("DELETE", "/api/queues/{vhost}/{name}"): "queue.deleted",
    ("DELETE", "/api/queues/{vhost}/{name}/contents"): "queue.purged",
    ("POST", "/api/queues/{vhost}/{name}/move"): "queue.moved",
    ("POST", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}"): "binding.created",
    ("DELETE", "/api/bindings/{vhost}/e/{source}/{kind}/{destination}/{properties}"): "binding.deleted",
}
"""By method and path; a test compares it with the routes that there are."""
STEPS: Final = {"acquire": "acquired", "retire": "retired", "release": "released", "take": "taken"}
TOLD: Final = frozenset({
    "tags", "configure", "write", "read", "exchange", "value", "pattern", "definition", "apply-to", "priority", "type",
    "durable", "auto_delete", "internal", "arguments", "routing_key", "destination", "count", "publishing", "limits",
    "session", "name",
})  # fmt: skip
"""Keys of bodies. What a parameter holds is not told: it may be an address with a password in it."""
PARAMETER: Final = "parameter."
IMPORT_LINES_MAX: Final = 1000
"""Of one import; how many there were is told anyway."""


def action_of(request: web.Request, status: int = 200) -> str:
    """Nothing: it changes nothing."""
    resource = request.match_info.route.resource
    path = "" if resource is None else resource.canonical.rstrip("/")
    found = ACTIONS.get((request.method, path), "")
    if found.endswith(CHANGED):
        return found.removesuffix(CHANGED) + ("created" if status == 201 else "changed")
    return found + STEPS.get(request.match_info.get("do", ""), "") if found.endswith(".") else found


def succeeded(ask: Ask, status: int) -> None:
    action = action_of(ask.request, status)
    if action:
        _record(ask, action, DONE, "", _told(ask, action))


def failed(ask: Ask, error: BaseException) -> None:
    refused = is_refusal(error)
    action = action_of(ask.request)
    why = str(error) if isinstance(error, Refused | CoterieError) else type(error).__name__
    if action:
        _record(ask, action, REFUSED if refused else FAILED, why, _told(ask, action))
    if refused:
        _record(ask, "access.refused", REFUSED, why, {"path": f"{ask.request.method} {ask.request.path}"})


def _record(ask: Ask, action: str, result: str, why: str, told: dict[str, object]) -> None:
    user = ask.user
    ask.context.broker.audit.record(action, user.name, ask.host, "http", result, why, token=user.token, **told)


def is_refusal(error: BaseException) -> bool:
    if isinstance(error, Refused):
        return error.status in (401, 403)
    return isinstance(error, ProtocolError) and error.reply_code == ACCESS_REFUSED


def _told(ask: Ask, action: str) -> dict[str, object]:
    """Parts of the path as `of_...`: whose names they are."""
    told: dict[str, object] = {f"of_{name}": value for name, value in ask.request.match_info.items() if name != "do"}
    for name, value in ask.said.items():
        if name in TOLD and not (name == "value" and action.startswith(PARAMETER)):
            nested = isinstance(value, dict | list) and name != "tags"
            told[name.replace("-", "_")] = json.dumps(value) if nested else value
    return told


def user_deleted(ask: Ask, name: str) -> None:
    """One of several that a request names."""
    _record(ask, "user.deleted", DONE, "", {"of_user": name, "by": "users.deleted"})


def imported(ask: Ask, plan: Plan, why: str = "") -> None:
    """All that an import has changed; or, if it failed (`why`), may have. Users and what they may first: if there are
    too many, wiring is what has no lines."""
    found: list[tuple[str, dict[str, object]]] = [("vhost.created", {"of_vhost": name}) for name in plan.vhosts]
    for each in plan.users:
        found.append(("user.changed", {"of_user": each.name, "tags": each.tags}))
        found += [
            ("user_limit.set", {"of_user": each.name, "of_limit": name, "value": n}) for name, n in each.limits.items()
        ]
        if each.allow:
            found.append(("user_addresses.set", {"of_user": each.name, "value": json.dumps(each.allow.texts())}))
    for user, vhost, may in plan.permissions:
        patterns = {"configure": may.configure, "write": may.write, "read": may.read}
        found.append(("permission.set", {"of_user": user, "of_vhost": vhost, **patterns}))
    found += [
        (
            "topic_permission.set",
            {"of_user": user, "of_vhost": vhost, "exchange": exchange, "write": may.write, "read": may.read},
        )
        for user, vhost, exchange, may in plan.topics
    ]
    for action, policies in (("policy.changed", plan.policies), ("operator_policy.changed", plan.operator_policies)):
        found += [
            (action, {"of_vhost": vhost, "of_name": policy.name, "definition": json.dumps(dict(policy.definition))})
            for vhost, policy in policies
        ]
    found += [("vhost_limit.set", {"of_vhost": vhost, "of_limit": name, "value": n}) for vhost, name, n in plan.limits]
    found += [("parameter.set", {"of_name": name}) for name, _ in plan.global_parameters]
    found += [
        ("exchange.created", {"of_vhost": vhost, "of_name": spec.name, "type": spec.kind, "durable": spec.durable})
        for vhost, spec in plan.exchanges
    ]
    found += [
        ("queue.created", {"of_vhost": vhost, "of_name": name, "durable": spec.durable})
        for vhost, name, spec in plan.queues
    ]
    for vhost, binding in plan.bindings:
        between = {"of_source": binding.source, "of_kind": binding.kind[0], "of_destination": binding.destination}
        found.append(("binding.created", {"of_vhost": vhost, **between, "routing_key": binding.key}))
    for action, told in found[:IMPORT_LINES_MAX]:
        _record(ask, action, FAILED if why else DONE, why, {"by": "definitions", **told})
