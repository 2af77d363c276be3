"""Settings that would have no effect are refused: what they are about is not there, and who set them thinks it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from coterie.errors import UserError

if TYPE_CHECKING:
    from coterie.config import Config


@dataclass(frozen=True, slots=True)
class Rule:
    """Settings of one section that mean something only if something else is set."""

    section: str
    names: frozenset[str]
    """Empty: all of them."""
    works: Callable[[Config], bool]
    remedy: str
    """Why it has none, and what to do."""
    but: frozenset[str] = frozenset()


def _rule(section: str, names: str, works: Callable[[Config], object], remedy: str, but: str = "") -> Rule:
    return Rule(
        section, frozenset(names.split()), lambda config: bool(works(config)), remedy, frozenset(but.split())
    )  # fmt: skip


ALONE = "the broker stands alone: set cluster.size, or leave it out"
PROBES = "probe_connections_max probe_timeout"
RULES: tuple[Rule, ...] = (
    _rule(
        "node", "bind peers secret secret_file encrypt group_tls_cert group_tls_key group_tls_ca",
        lambda config: config.cluster.size, ALONE,
    ),
    _rule("cluster", "", lambda config: config.cluster.size, ALONE, but="size"),
    _rule(
        "cluster", "ownership_time", lambda config: config.cluster.dispatch == "ownership",
        "cluster.dispatch is not ownership: set that, or leave it out",
    ),
    _rule(
        "cluster", "credit_max", lambda config: config.cluster.dispatch == "credit",
        "cluster.dispatch is not credit: set that, or leave it out",
    ),
    _rule("store", "", lambda config: config.node.data, "nothing is stored: set node.data, or leave it out"),
    _rule(
        "node", "trace_segment_seconds", lambda config: config.node.trace,
        "no trace is written: set node.trace, or leave it out",
    ),
    _rule(
        "node", "trace_segment_bytes", lambda config: config.node.trace and config.node.trace_segment_seconds,
        "no trace is written in segments: set node.trace and node.trace_segment_seconds, or leave it out",
    ),
    _rule(
        "node", "trace_hold", lambda config: config.node.trace_publish != "never",
        "no trace is published: set node.trace_publish, or leave it out",
    ),
    _rule(
        "listen", "tls_cert tls_key tls_version",
        lambda config: config.listen.amqps or config.listen.console_tls,
        "nothing listens with TLS: set listen.amqps or listen.console_tls, or leave it out",
    ),
    _rule(
        "listen", "tls_reload",
        lambda config: (
            config.listen.amqps or config.listen.console_tls or config.node.group_tls_cert
            or config.replication.tls_ca or config.replication.tls_cert
        ),
        "no certificates are named: set listen.amqps, listen.console_tls or node.group_tls_cert, or leave it out",
    ),
    _rule(
        "listen", "tls_ca tls_clients", lambda config: config.listen.amqps,
        "it is for AMQP over TLS: set listen.amqps, or leave it out",
    ),
    _rule(
        "listen", "console_tls", lambda config: config.listen.console,
        "the console is shut: set listen.console, or leave it out",
    ),
    _rule(
        "listen", "amqp_allow", lambda config: config.listen.amqp,
        "nothing listens there: set listen.amqp, or leave it out",
    ),
    _rule(
        "listen", "amqps_allow", lambda config: config.listen.amqps,
        "nothing listens there: set listen.amqps, or leave it out",
    ),
    _rule(
        "listen", "console_allow", lambda config: config.listen.console,
        "nothing listens there: set listen.console, or leave it out",
    ),
    _rule(
        "listen", "probes_allow", lambda config: config.listen.probes,
        "nothing listens there: set listen.probes, or leave it out",
    ),
    _rule(
        "amqp", "", lambda config: config.listen.amqp or config.listen.amqps,
        "nothing listens for AMQP: set listen.amqp or listen.amqps, or leave it out",
    ),
    _rule(
        "amqp", "certificate_name", lambda config: config.listen.amqps,
        "it is for AMQP over TLS: set listen.amqps, or leave it out",
    ),
    _rule(
        "console", "", lambda config: config.listen.console,
        "the console is shut: set listen.console, or leave it out", but=PROBES,
    ),
    _rule(
        "console", PROBES, lambda config: config.listen.probes,
        "there are no probes: set listen.probes, or leave it out",
    ),
    _rule(
        "replication", "", lambda config: config.replication.to,
        "nothing is replicated to anywhere: set replication.to, or leave it out", but="to",
    ),
    _rule(
        "audit", "segment_bytes segments_kept", lambda config: config.audit.folder or config.node.data,
        "the audit log has no files: set audit.folder or node.data, or leave it out",
    ),
    _rule(
        "audit", "hold", lambda config: config.audit.publish,
        "the audit log is not published: set audit.publish, or leave it out",
    ),
    _rule(
        "audit", "window lines_per_host lines_in_all",
        lambda config: config.audit.folder or config.node.data or config.audit.publish,
        "there is no audit log: set audit.folder, node.data or audit.publish, or leave it out",
    ),
    _rule(
        "broker", "queue_resident_max", lambda config: config.node.data and not config.cluster.size,
        "a broker pages messages out that has node.data and stands alone: leave it out",
    ),
    _rule(
        "broker", "memory_low", lambda config: config.broker.memory_high,
        "there is no alarm: set broker.memory_high, or leave it out",
    ),
)  # fmt: skip


def check_effect(config: Config, given: Mapping[tuple[str, str], str]) -> None:
    """`given`: what was set, by section and name, and where. One that has the default's value asks for nothing."""
    for (section, name), where in given.items():
        values = getattr(config, section)
        default = next(item.default for item in fields(values) if item.name == name)
        if getattr(values, name) == default:
            continue
        for rule in _rules(section, name):
            if not rule.works(config):
                raise UserError(f"{where}: {name} has no effect: {rule.remedy}")


def _rules(section: str, name: str) -> Iterable[Rule]:
    return (
        rule
        for rule in RULES
        if rule.section == section and (not rule.names or name in rule.names) and name not in rule.but
    )
