"""Policies, for policymakers in the vhosts that are open to them; operator policies are for administrators to set."""

from __future__ import annotations

from aiohttp import web

from coterie.auditlog.log import EXCHANGE as AUDIT_EXCHANGE
from coterie.broker.policy import Policy
from coterie.broker.vhost import Vhost
from coterie.console.ask import (
    POLICYMAKER,
    Ask,
    Handler,
    Route,
    answer,
    not_found,
    nothing,
    number_of,
    table_of,
    text_of,
)
from coterie.console.listing import Shape
from coterie.console.pattern_cost import check_cost
from coterie.console.shapes import policy_shape, with_problems


def _shown(found: tuple[Vhost, Policy]) -> Shape:
    return with_problems(policy_shape(*found), "pattern")


def _routes(base: str, operator: bool) -> list[Route]:
    def kept(vhost: Vhost) -> dict[str, Policy]:
        return vhost.operator_policies if operator else vhost.policies

    def one(ask: Ask) -> tuple[Vhost, Policy]:
        vhost, name = ask.vhost(), ask.part("name")
        policy = kept(vhost).get(name)
        if policy is None:
            raise not_found(f"no policy '{name}' in vhost '{vhost.name}'")
        return vhost, policy

    async def listed(ask: Ask) -> web.Response:
        ask.require(POLICYMAKER)
        found = [(vhost, kept(vhost)[name]) for vhost in ask.visible() for name in sorted(kept(vhost))]
        return await ask.listed(found, lambda each: each[1].name, _shown)

    async def shown(ask: Ask) -> web.Response:
        ask.require(POLICYMAKER)
        return answer(_shown(one(ask)))

    async def put(ask: Ask) -> web.Response:
        _require_to_change(ask)
        vhost, name, body = ask.entered(), ask.part("name"), await ask.body("pattern", "definition")
        policy = Policy(
            name, text_of(body, "pattern"), table_of(body, "definition"), text_of(body, "apply-to", "all"),
            number_of(body, "priority", 0),
        )  # fmt: skip
        if AUDIT_EXCHANGE in policy.definition.values():
            ask.require()  # who sends dead letters there makes up what others are said to have done
        there = name in kept(vhost)
        policy.check(operator)
        check_cost(policy.pattern, vhost.queues)
        await ask.context.outcome(lambda done: vhost.set_policy(policy, done, operator))
        return nothing(204 if there else 201)

    async def delete(ask: Ask) -> web.Response:
        _require_to_change(ask)
        ask.entered()
        vhost, policy = one(ask)
        await ask.context.outcome(lambda done: vhost.clear_policy(policy.name, done, operator))
        return nothing()

    def _require_to_change(ask: Ask) -> None:
        if operator:
            ask.require()
        else:
            ask.require(POLICYMAKER)

    handlers: list[tuple[str, str, Handler]] = [
        ("GET", base, listed),
        ("GET", f"{base}/{{vhost}}", listed),
        ("GET", f"{base}/{{vhost}}/{{name}}", shown),
        ("PUT", f"{base}/{{vhost}}/{{name}}", put),
        ("DELETE", f"{base}/{{vhost}}/{{name}}", delete),
    ]
    return handlers


ROUTES: list[Route] = [*_routes("/api/policies", False), *_routes("/api/operator-policies", True)]
