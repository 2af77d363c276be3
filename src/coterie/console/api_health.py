"""Health checks: 200 and {"status": "ok"}, or 503 with {"status": "failed"} and the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from aiohttp import web

from coterie.broker.message import make_message
from coterie.broker.publish import Publish
from coterie.broker.specs import QueueSpec
from coterie.cluster.status import IN_STEP, LOST
from coterie.console.api_messages import next_message
from coterie.console.ask import Ask, Route, answer, bad, not_found
from coterie.console.certificates import validities
from coterie.console.probes import why_not_ready
from coterie.errors import CoterieError

ALIVENESS: Final = "aliveness-test"
"""The queue that is made for the test of that name, and stays, as in RabbitMQ."""
UNITS: Final = {"days": 1, "weeks": 7, "months": 30, "years": 365}
"""In days."""
WITHIN_MAX: Final = 1000
ALONE: Final = {"status": "ok", "reason": "single node cluster"}


def ok() -> web.Response:
    return answer({"status": "ok"})


def failed(reason: str, **more: object) -> web.Response:
    return answer({"status": "failed", "reason": reason} | more, 503)


async def alarms(ask: Ask) -> web.Response:
    """Of all brokers of the cluster: they count here, too."""
    broker = ask.context.broker
    return _alarms({ask.context.name: broker.alarms_on, **broker.alarms_elsewhere}, broker.blocked)


async def local_alarms(ask: Ask) -> web.Response:
    on = ask.context.broker.alarms_on
    return _alarms({ask.context.name: on}, f"low on {' and '.join(on)}")


def _alarms(found: Mapping[str, Sequence[str]], reason: str) -> web.Response:
    shapes = [{"node": node, "resource": name} for node, on in sorted(found.items()) for name in on]
    return failed(reason, alarms=shapes) if shapes else ok()


async def port_listener(ask: Ask) -> web.Response:
    text = ask.part("port")
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536):
        raise bad(f"'{text[:20]}' is no port")
    ports = sorted({listener.endpoint.port for listener in ask.context.amqp.listeners})
    if int(text) in ports:
        return answer({"status": "ok", "port": int(text)})
    return failed("No active listener", missing=int(text), ports=ports)


async def protocol_listener(ask: Ask) -> web.Response:
    name = ask.part("protocol")
    if name in ("amqp", "amqp091", "amqp0-9-1") and ask.context.amqp.listeners:
        return answer({"status": "ok", "protocol": name})
    return failed("No active listener", missing=name, protocols=["amqp"])


async def virtual_hosts(ask: Ask) -> web.Response:
    """Those that are there run."""
    return ok()


async def quorum_critical(ask: Ask) -> web.Response:
    """Whether the cluster would have no majority if this node stopped now."""
    member = ask.context.member
    if member is None:
        return answer(ALONE)
    status = member.status()
    others = [each for each in status.members if each.voter and each.state != LOST and not each.this]
    if len(others) >= status.majority:
        return ok()
    return failed(
        "There would be no majority if this node went offline",
        voters=len(status.voters), majority=status.majority, others=[each.name for each in others],
    )  # fmt: skip


async def sync_critical(ask: Ask) -> web.Response:
    """Whether no other node has everything that this one has."""
    member = ask.context.member
    if member is None:
        return answer(ALONE)
    members = member.status().members
    if any(each.state == IN_STEP and not each.this for each in members):
        return ok()
    return failed("No other node is in step with this one", members=[f"{each.name}: {each.state}" for each in members])


async def certificate_expiration(ask: Ask) -> web.Response:
    """Whether one of the certificates that clients or brokers are shown, or are checked with, ends within that time."""
    within, unit = ask.part("within"), ask.part("unit")
    if unit not in UNITS:
        raise bad(f"Time unit not recognised. Supported units: {', '.join(UNITS)}.")
    if not (within.isascii() and within.isdigit() and len(within) < 5 and int(within) <= WITHIN_MAX):
        raise bad(f"Invalid expiration value: 0 to {WITHIN_MAX}.")
    until = datetime.now(UTC) + timedelta(days=int(within) * UNITS[unit])
    loop = asyncio.get_running_loop()
    ending = [
        {"file": file, "ends": each.ends.isoformat()}
        for file in ask.context.certificates
        for each in await loop.run_in_executor(None, validities, file)
        if each.ends <= until
    ]
    return failed("Certificates expiring", expired=ending) if ending else ok()


# What older tools ask for.


async def aliveness(ask: Ask) -> web.Response:
    """A message goes into a queue and comes out again, with the permissions of whoever asks."""
    vhost, context = ask.entered(), ask.context
    for what in ("configure", "write", "read"):
        ask.permit(vhost, what, "queue", ALIVENESS)
    why = context.amqp.unavailable() or context.broker.blocked
    if why:
        return failed(why)
    try:
        spec = QueueSpec(False, False, False, {})
        await context.outcome(lambda done: vhost.declare_queue(ALIVENESS, spec, False, None, done))
        one = Publish(make_message("", ALIVENESS, b"test_message"))
        await context.outcome(lambda done: vhost.publish([one], lambda: done(None)))
        got = await next_message(ask, vhost.queue(ALIVENESS), no_ack=True)
    except CoterieError as error:
        return failed(str(error))
    return ok() if got is not None else failed("what was published was not there")


async def node_health(ask: Ask) -> web.Response:
    name = ask.request.match_info.get("name", ask.context.name)
    if name != ask.context.name:
        member = ask.context.member
        members = () if member is None else member.status().members
        states = [each.state for each in members if each.name == name]
        if not states:
            raise not_found(f"no node '{name}'")
        return ok() if states[0] == IN_STEP else failed(f"{name} is {states[0]}")
    why = why_not_ready(ask.context) or ask.context.broker.blocked
    return failed(why) if why else ok()


CHECKS: Final = "/api/health/checks"
ROUTES: list[Route] = [
    ("GET", f"{CHECKS}/alarms", alarms),
    ("GET", f"{CHECKS}/local-alarms", local_alarms),
    ("GET", f"{CHECKS}/port-listener/{{port}}", port_listener),
    ("GET", f"{CHECKS}/protocol-listener/{{protocol}}", protocol_listener),
    ("GET", f"{CHECKS}/virtual-hosts", virtual_hosts),
    ("GET", f"{CHECKS}/node-is-quorum-critical", quorum_critical),
    ("GET", f"{CHECKS}/node-is-mirror-sync-critical", sync_critical),
    ("GET", f"{CHECKS}/certificate-expiration/{{within}}/{{unit}}", certificate_expiration),
    ("GET", "/api/aliveness-test/{vhost}", aliveness),
    ("GET", "/api/healthchecks/node", node_health),
    ("GET", "/api/healthchecks/node/{name}", node_health),
]
