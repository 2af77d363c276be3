"""What the checks of a node's security are made on: plain facts about its settings, users, files and certificates.

Settings say nothing of users, and a configuration that no node runs with yet has none: what is not known is None, and
is not judged. Nothing here opens a secret; of a file only its permissions count, of a certificate its end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coterie import patterns
from coterie.addresses import allow_list, is_this_machine
from coterie.broker.passwords import Hash
from coterie.broker.users import ADMINISTRATOR, GUEST, GUEST_PASSWORD, User, Users
from coterie.broker.vhost import Vhost
from coterie.console.certificates import Validity, validities
from coterie.errors import UserError
from coterie.group.protocols.tcp import TcpSettings
from coterie.node.group_port import GroupPort
from coterie.node.settings import endpoint
from coterie.runtime.aio import descriptors
from coterie.secret_file import forbidden_bits
from coterie.site_replication.address import parse_destinations

if TYPE_CHECKING:
    from coterie.node.node import NodeConfig

EVERYTHING: Final = frozenset({".*", "^.*$", "^.*", ".*$"})
"""Patterns that fit every name."""
TRIED_MAX: Final = 16
"""Administrators whose password is compared with their name: each takes some 40 ms."""
FOR_OWNER: Final = 0o077
"""Bits that a file which is its owner's only must not have."""
NOT_FOR_OTHERS: Final = 0o037
"""And one that a group may read: keys are often handed out so."""


@dataclass(frozen=True, slots=True)
class Door:
    """Somewhere that the node listens."""

    setting: str
    address: str
    tls: bool
    allowed: tuple[str, ...] = ()
    """Networks that may come; none: all."""

    @property
    def exposed(self) -> bool:
        """Whether other hosts can reach it, and are let in."""
        if is_this_machine(endpoint(self.address, self.setting).host):
            return False
        networks = allow_list(self.allowed, f"{self.setting}_allow").networks
        return not networks or not all(network.is_loopback for network in networks)


@dataclass(frozen=True, slots=True)
class Account:
    """A user."""

    name: str
    administrator: bool
    password: bool
    """Whether there is one."""
    guessed: str = ""
    """The password, if it is one that everybody tries first."""
    everything: tuple[str, ...] = ()
    """Vhosts in which it may do everything."""


@dataclass(frozen=True, slots=True)
class Group:
    """How the port for the other brokers of a cluster is protected."""

    exposed: str
    """The setting by which other machines are involved; empty: none is."""
    secret: bool
    encrypted: bool


@dataclass(frozen=True, slots=True)
class FileMode:
    """Of a file or folder that holds what others must not see."""

    what: str
    path: str
    mode: int
    forbidden: int
    folder: bool = False


@dataclass(frozen=True, slots=True)
class Certificate:
    """That of a file which ends first; None if none can be read."""

    setting: str
    path: str
    validity: Validity | None


@dataclass(frozen=True, slots=True)
class Link:
    """To another broker, that queues are replicated by."""

    name: str
    exposed: bool
    tls: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one node, or of one that could be started so."""

    now: datetime
    doors: tuple[Door, ...] = ()
    loopback_users: tuple[str, ...] = (GUEST,)
    accounts: tuple[Account, ...] | None = None
    group: Group | None = None
    """None: the broker stands alone."""
    files: tuple[FileMode, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    links: tuple[Link, ...] = ()
    memory_high: int = 1
    disk_reserve: int = 1
    console_hosts: tuple[str, ...] = ()
    useless_patterns: tuple[str, ...] = ()
    """Of permissions and policies: whose, and why they fit nothing."""
    audited: bool = True
    root: bool = False
    descriptors: int | None = None
    """That the process may have open; None: any number, or not known."""
    places: int = 0
    """For those who have not logged in, at all doors: each takes a descriptor."""

    def open_to_others(self, setting: str) -> list[Door]:
        """The doors of a setting that others than this machine can reach."""
        return [door for door in self.doors if door.setting == setting and door.exposed]

    @property
    def exposed(self) -> bool:
        """Whether somebody on another host can log in."""
        return any(door.exposed for door in self.doors if door.setting != "listen.probes")


def facts_of(config: NodeConfig, now: datetime) -> Facts:
    """What the settings say, and the files that they name. Reads small files: not for the loop of a busy node."""
    listen = config.listen
    doors = (
        Door("listen.amqp", listen.amqp, False, listen.amqp_allow),
        Door("listen.amqps", listen.amqps, True, listen.amqps_allow),
        Door("listen.console", listen.console, listen.console_tls, listen.console_allow),
        Door("listen.probes", listen.probes, False, listen.probes_allow),
    )
    return Facts(
        now,
        tuple(door for door in doors if door.address),
        config.users.loopback_users,
        group=_group(config.group_port) if config.cluster.size else None,
        files=tuple(_files(config)),
        certificates=tuple(_certificates(config)),
        links=tuple(
            Link(each.name, not all(is_this_machine(host.host) for host in each.hosts), each.secure)
            for each in parse_destinations(config.replication.to)
        ),
        memory_high=config.broker.memory_high,
        disk_reserve=config.store.reserve_bytes if config.data is not None else 1,
        console_hosts=config.console.hosts,
        audited=bool(config.audit.folder or config.data or config.audit.publish),
        places=_places(config),
    )


def _places(config: NodeConfig) -> int:
    listen, amqp = config.listen, config.amqp.handshakes_max
    group = 2 * TcpSettings().handshakes_max if config.cluster.size else 0  # with and without TLS
    return (
        (amqp if listen.amqp or listen.amqps else 0)
        + (amqp if listen.amqps else 0)  # as many TLS handshakes
        + (config.console.connections_max if listen.console else 0)
        + (config.console.probe_connections_max if listen.probes else 0)
        + group
    )


def of_running(facts: Facts, users: Users, vhosts: Iterable[Vhost]) -> Facts:
    """And what only a node that runs can tell: who may log in, and do what. Quick: passwords are not tried."""
    accounts = tuple(account_of(user) for user in users)
    useless = tuple(_useless_patterns(users, vhosts))
    return replace(
        facts, accounts=accounts, useless_patterns=useless, root=os.geteuid() == 0, descriptors=descriptors.limit()
    )


def _useless_patterns(users: Iterable[User], vhosts: Iterable[Vhost]) -> Iterable[str]:
    """Of records that an older version, or another program, has let in."""
    for user in users:
        for vhost, granted in user.permissions.items():
            for what in ("configure", "write", "read"):
                wrong = patterns.problem(getattr(granted, what))
                if wrong:
                    yield f"what user '{user.name}' may {what} in '{vhost}': {wrong}"
    for each in vhosts:
        for name, policy in (*each.policies.items(), *each.operator_policies.items()):
            wrong = patterns.problem(policy.pattern)
            if wrong:
                yield f"policy '{name}' of '{each.name}': {wrong}"


def with_guesses(facts: Facts, users: Iterable[User]) -> Facts:
    """And whether administrators, and guest, have their names for passwords. Slow, on purpose of those who hash."""
    wanted = [user for user in users if user.password and (user.administrator or user.name == GUEST)][:TRIED_MAX]
    guessed = {user.name for user in wanted if user.password and _is_name(user.password, user.name)}
    found = (replace(each, guessed=each.name) if each.name in guessed else each for each in facts.accounts or ())
    return replace(facts, accounts=tuple(found))


@lru_cache(4 * TRIED_MAX)
def _is_name(password: Hash, name: str) -> bool:
    """A hash and a name give one answer: whoever asks again and again does not have it worked out again and again."""
    return password.fits(name.encode())


def account_of(user: User) -> Account:
    everything = tuple(
        vhost
        for vhost, granted in user.permissions.items()
        if {granted.configure, granted.write, granted.read} <= EVERYTHING
    )
    known = GUEST if user.password == GUEST_PASSWORD else ""
    has_password = user.password is not None and bool(user.password.text)
    return Account(user.name, ADMINISTRATOR in user.tags, has_password, known, everything)


def _group(port: GroupPort) -> Group:
    return Group(port.exposed(), bool(port.secret), port.encrypted())


def _files(config: NodeConfig) -> Iterable[FileMode]:
    password = config.replication.password_file
    named = [
        ("the data folder", str(config.data or ""), FOR_OWNER),
        ("the folder of traces", str(config.trace or ""), FOR_OWNER),
        ("the secret of the cluster", config.secret_file, forbidden_bits(Path(config.secret_file))),
        ("the folder of the audit log", config.audit.folder, FOR_OWNER),
        ("the password of links", password, forbidden_bits(Path(password))),
        ("the private key (listen.tls_key)", config.listen.tls_key, NOT_FOR_OTHERS),
        ("the private key (node.group_tls_key)", config.group_port.certificates[1], FOR_OWNER),
    ]
    for what, path, forbidden in named:
        found = _mode(path)
        if found is not None:
            yield FileMode(what, path, stat.S_IMODE(found), forbidden, stat.S_ISDIR(found))


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode if path else None
    except OSError:  # the node itself says so when it needs it
        return None


def _certificates(config: NodeConfig) -> Iterable[Certificate]:
    group_cert, _, group_ca = config.group_port.certificates
    named = (
        ("listen.tls_cert", config.listen.tls_cert), ("listen.tls_ca", config.listen.tls_ca),
        ("node.group_tls_cert", group_cert), ("node.group_tls_ca", group_ca),
    )  # fmt: skip
    for name, path in named:
        if path:
            try:
                first: Validity | None = validities(path)[0]
            except UserError:
                first = None
            yield Certificate(name, path, first)
