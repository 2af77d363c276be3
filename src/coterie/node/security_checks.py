"""What is unsafe about a node, and the line that mends it: one small function for each check, in one table.

The only place that decides: `coterie node` logs what is found at start, `/api/security` answers it, `coterie doctor`
prints it. A check sees facts (`security_facts`) and yields what is wrong, each with its remedy; to add one, write the
function and its line in `CHECKS`, and docs/security.md names it (a test looks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from coterie.node.security_facts import Account, Facts

UNSAFE: Final = "unsafe"
"""Somebody who should not can get in, read along or stop the node."""
ADVICE: Final = "advice"
"""It is safe while something else holds: a firewall, a proxy, a careful user."""
SOON: Final = timedelta(days=30)
"""Or the last quarter of its life, for a certificate that is renewed by a program every few weeks, or days."""
OWN_DESCRIPTORS: Final = 200
"""Files of the store, listeners, links: what a node has open besides its clients' connections."""
NAMED_MAX: Final = 5
"""Users that one finding names."""

Problem = tuple[str, str]
"""What is wrong, and what mends it."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at."""

    name: str
    severity: str
    look: Callable[[Facts], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    check: str
    severity: str
    text: str
    mend: str

    def to_json(self) -> dict[str, str]:
        return {"check": self.check, "severity": self.severity, "text": self.text, "mend": self.mend}


def findings(facts: Facts) -> list[Finding]:
    """What is unsafe first."""
    found = [
        Finding(check.name, check.severity, text, mend) for check in CHECKS for text, mend in check.look(facts)
    ]  # fmt: skip
    return sorted(found, key=lambda each: each.severity != UNSAFE)


def report(found: Iterable[Finding]) -> dict[str, object]:
    """As JSON."""
    each = [*found]
    return {"safe": all(one.severity != UNSAFE for one in each), "findings": [one.to_json() for one in each]}


# Who gets in.


def _guessed(facts: Facts, reachable: bool) -> Iterator[Account]:
    for account in facts.accounts or ():
        if account.guessed and (facts.exposed and account.name not in facts.loopback_users) is reachable:
            yield account


def _password_known(facts: Facts) -> Iterator[Problem]:
    for account in _guessed(facts, reachable=True):
        yield (
            f"user '{account.name}' has the password '{account.guessed}', and other hosts can log in with it",
            f"coterie users change {account.name} --password-stdin, or coterie users delete {account.name}",
        )


def _password_known_here(facts: Facts) -> Iterator[Problem]:
    for account in _guessed(facts, reachable=False):
        yield (
            f"user '{account.name}' has the password '{account.guessed}': whoever is on this host, or comes through a "
            "proxy on it, can log in with it",
            f"coterie users add NAME --password-stdin --tags administrator, then coterie users delete {account.name}",
        )


def _administrators(facts: Facts) -> Iterator[Problem]:
    users = [account for account in facts.accounts or () if not account.guessed]
    if len(users) > 1 and all(account.administrator for account in users):
        yield (
            f"every user has the tag administrator: {_names(users)}",
            "coterie users change NAME --tags '' for those that only publish and consume",
        )


def _administrator_without_password(facts: Facts) -> Iterator[Problem]:
    for account in facts.accounts or ():
        if account.administrator and not account.password:
            yield (
                f"administrator '{account.name}' has no password: whoever gets a certificate of that name is it",
                f"coterie users change {account.name} --password-stdin, or take the tag away: --tags ''",
            )


def _all_may_do_everything(facts: Facts) -> Iterator[Problem]:
    users = [account for account in facts.accounts or () if not account.administrator]
    wide = [account for account in users if account.everything]
    if len(users) > 1 and len(wide) == len(users):
        yield (
            f"every user may do everything in its vhosts ('.*' for configure, write and read): {_names(wide)}",
            r"coterie permissions set NAME '^shop\.' '^shop\.' '^shop\.' --vhost VHOST",
        )


# Who can read along.


def _amqp_in_clear(facts: Facts) -> Iterator[Problem]:
    for door in facts.open_to_others("listen.amqp"):
        yield (
            f"AMQP without TLS on {door.address}: passwords and messages can be read on the way",
            '[listen] amqps = "0.0.0.0:5671" with tls_cert and tls_key, and amqp = "localhost:5672"',
        )


def _console_in_clear(facts: Facts) -> Iterator[Problem]:
    for door in facts.open_to_others("listen.console"):
        if not door.tls:
            yield (
                f"the console speaks HTTP without TLS on {door.address}: passwords can be read on the way",
                '[listen] console_tls = true with tls_cert and tls_key, or console = "localhost:15672"',
            )


def _probes_open(facts: Facts) -> Iterator[Problem]:
    for door in facts.open_to_others("listen.probes"):
        yield (
            f"probes and metrics on {door.address} ask for no login: whoever reaches it sees how busy the node is",
            '[listen] probes = "localhost:15692", or probes_allow: the networks of Prometheus and the orchestrator',
        )


def _link_in_clear(facts: Facts) -> Iterator[Problem]:
    for link in facts.links:
        if link.exposed and not link.tls:
            yield (
                f"the link to {link.name} has no TLS: its password and all messages can be read on the way",
                "[replication] to = \"amqps://...\" in the place of amqp://",
            )  # fmt: skip


def _certificate_ends(facts: Facts) -> Iterator[Problem]:
    for each in facts.certificates:
        what = f"the certificate in {each.path} ({each.setting})"
        mend = f"put a new one into {each.path}: it is loaded without a restart"
        if each.validity is None:
            yield f"no certificate can be read from {each.path} ({each.setting})", mend
            continue
        begins, ends = each.validity.begins, each.validity.ends
        if ends <= facts.now:
            yield f"{what} ended on {ends:%Y-%m-%d}", mend
        elif ends <= facts.now + min(SOON, (ends - begins) / 4):
            days = (ends - facts.now).days
            when = f"on {ends:%Y-%m-%d}, in {days} day{'' if days == 1 else 's'}"
            yield f"{what} ends {when}, and was not renewed yet", mend
        elif begins > facts.now:
            yield f"{what} is good from {begins:%Y-%m-%d %H:%M} UTC on only", "wait, or set this host's clock"


# The cluster.


def _group_without_secret(facts: Facts) -> Iterator[Problem]:
    if facts.group is not None and not facts.group.secret:  # a node that others could reach so does not start
        yield (
            "the cluster has no secret: whoever has an account on this host can join it",
            'coterie cluster init /etc/coterie/secret, and [node] secret_file = "/etc/coterie/secret" on every broker',
        )


def _group_in_clear(facts: Facts) -> Iterator[Problem]:
    if facts.group is not None and facts.group.exposed and not facts.group.encrypted:
        yield (
            f"brokers do not encrypt what they tell each other, and {facts.group.exposed} is not on loopback: whoever "
            "is on the way can read and alter all messages",
            '[node] encrypt = "auto", which is the default, on every broker',
        )


# This host.


def _files_open(facts: Facts) -> Iterator[Problem]:
    for file in facts.files:
        if file.mode & file.forbidden:
            right = 0o700 if file.folder else 0o777 & ~file.forbidden & ~0o100
            yield (
                f"{file.what}, {file.path}, has mode {file.mode & 0o777:03o}: others on this host can get at it",
                f"chmod {right:o} {file.path}",
            )


def _root(facts: Facts) -> Iterator[Problem]:
    if facts.root:
        yield (
            "the node runs as root: whoever gets through it has the whole host",
            "run it as a user of its own: deploy/systemd, deploy/docker and deploy/kubernetes do",
        )


# What keeps it up.


def _no_memory_alarm(facts: Facts) -> Iterator[Problem]:
    if not facts.memory_high:
        yield (
            "broker.memory_high is 0: publishers are never blocked, and can take all memory of the node",
            f"[broker] memory_high = {1 << 30}, which is the default",
        )


def _few_descriptors(facts: Facts) -> Iterator[Problem]:
    needed = facts.places + OWN_DESCRIPTORS
    if facts.descriptors is not None and facts.descriptors < needed:
        yield (
            f"the process may have {facts.descriptors} files and sockets open: those who have not logged in can take "
            "all of them, and then nobody is let in",
            f"LimitNOFILE={needed} or more (systemd), --ulimit nofile={needed} (docker)",
        )


def _no_disk_reserve(facts: Facts) -> Iterator[Problem]:
    if not facts.disk_reserve:
        yield (
            "store.reserve_bytes is 0: on a disk that publishers have filled, consumers cannot acknowledge either",
            f"[store] reserve_bytes = {4 << 20}, which is the default",
        )


def _no_audit_log(facts: Facts) -> Iterator[Problem]:
    if facts.exposed and not facts.audited:
        yield "there is no audit log: who did what is not kept", '[audit] folder = "/var/log/coterie"'


def _any_host(facts: Facts) -> Iterator[Problem]:
    if "*" in facts.console_hosts:
        yield (
            "console.hosts is *: a page of another site that a name is pointed here for can ask this node",
            '[console] hosts = ["the.name.of.your.proxy"]',
        )


def _useless_patterns(facts: Facts) -> Iterator[Problem]:
    for each in facts.useless_patterns:
        yield f"{each}: it fits nothing", "set it anew: coterie permissions set, coterie policies set"


def _names(accounts: Sequence[Account]) -> str:
    names = ", ".join(account.name for account in accounts[:NAMED_MAX])
    return f"{names} and {len(accounts) - NAMED_MAX} more" if len(accounts) > NAMED_MAX else names


CHECKS: Final[tuple[Check, ...]] = (
    Check("password-known", UNSAFE, _password_known),
    Check("password-known-here", ADVICE, _password_known_here),
    Check("all-administrators", ADVICE, _administrators),
    Check("administrator-without-password", ADVICE, _administrator_without_password),
    Check("all-may-do-everything", ADVICE, _all_may_do_everything),
    Check("amqp-in-clear", UNSAFE, _amqp_in_clear),
    Check("console-in-clear", UNSAFE, _console_in_clear),
    Check("probes-open", ADVICE, _probes_open),
    Check("link-in-clear", UNSAFE, _link_in_clear),
    Check("certificate-ends", UNSAFE, _certificate_ends),
    Check("group-without-secret", ADVICE, _group_without_secret),
    Check("group-in-clear", UNSAFE, _group_in_clear),
    Check("files-open", UNSAFE, _files_open),
    Check("runs-as-root", ADVICE, _root),
    Check("no-memory-alarm", UNSAFE, _no_memory_alarm),
    Check("few-descriptors", UNSAFE, _few_descriptors),
    Check("no-disk-reserve", ADVICE, _no_disk_reserve),
    Check("no-audit-log", ADVICE, _no_audit_log),
    Check("console-for-any-name", ADVICE, _any_host),
    Check("pattern-fits-nothing", UNSAFE, _useless_patterns),
)
