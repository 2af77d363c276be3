"""Every check of a node's security: what it finds, and that it is silent where nothing is wrong."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coterie.addresses import is_this_machine
from coterie.broker.passwords import hashed
from coterie.broker.policy import Policy
from coterie.broker.settings import BrokerSettings
from coterie.broker.users import GUEST_PASSWORD, Permissions, User, Users
from coterie.broker.vhost import Vhost
from coterie.cli import main
from coterie.cluster.settings import ClusterSettings
from coterie.console.certificates import Validity
from coterie.errors import UserError
from coterie.node.group_port import GroupPort
from coterie.node.node import NodeConfig
from coterie.node.security_checks import ADVICE, CHECKS, UNSAFE, Finding, findings
from coterie.node.security_facts import (
    TRIED_MAX,
    Account,
    Certificate,
    Door,
    Facts,
    FileMode,
    Group,
    Link,
    account_of,
    facts_of,
    of_running,
    with_guesses,
)
from coterie.node.settings import ListenSettings
from coterie.secret_file import read_secret_file
from coterie.site_replication.settings import ReplicationSettings

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SAFE = Facts(NOW, accounts=())
OUTSIDE = (Door("listen.amqps", "0.0.0.0:5671", True),)
GUEST = Account("guest", True, True, guessed="guest")


def account(name: str, administrator: bool = False, everything: tuple[str, ...] = ()) -> Account:
    return Account(name, administrator, True, everything=everything)


def ending(**after: float) -> tuple[Certificate, ...]:
    return (Certificate("listen.tls_cert", "node.pem", Validity(NOW - timedelta(days=365), NOW + timedelta(**after))),)


def short_lived(days: float, left: float) -> tuple[Certificate, ...]:
    ends = NOW + timedelta(days=left)
    return (Certificate("listen.tls_cert", "node.pem", Validity(ends - timedelta(days=days), ends)),)


def door(setting: str, address: str, tls: bool = False) -> tuple[Door, ...]:
    return (Door(setting, address, tls),)


def file(mode: int, forbidden: int = 0o077, folder: bool = False) -> tuple[FileMode, ...]:
    return (FileMode("the key", "/etc/key", mode, forbidden, folder),)


TABLE: dict[str, tuple[list[Facts], list[Facts]]] = {
    "password-known": (
        [replace(SAFE, doors=OUTSIDE, loopback_users=(), accounts=(GUEST,))],
        [
            replace(SAFE, doors=OUTSIDE, accounts=(GUEST,)),
            replace(SAFE, doors=door("listen.amqp", "[::1]:5672"), loopback_users=(), accounts=(GUEST,)),
            replace(SAFE, doors=OUTSIDE, loopback_users=(), accounts=(account("guest", True),)),
            replace(SAFE, doors=OUTSIDE, loopback_users=(), accounts=None),
            replace(SAFE, doors=door("listen.probes", "0.0.0.0:15692"), loopback_users=(), accounts=(GUEST,)),
        ],
    ),
    "password-known-here": (
        [
            replace(SAFE, accounts=(GUEST,)),
            replace(SAFE, doors=OUTSIDE, accounts=(GUEST,)),
        ],
        [
            replace(SAFE, doors=OUTSIDE, loopback_users=(), accounts=(GUEST,)),
            replace(SAFE, accounts=(account("guest"),)),
        ],
    ),
    "all-administrators": (
        [replace(SAFE, accounts=(account("a", True), account("b", True)))],
        [
            replace(SAFE, accounts=(account("a", True), account("b"))),
            replace(SAFE, accounts=(account("a", True), GUEST)),
            replace(SAFE, accounts=(account("a", True),)),
        ],
    ),
    "administrator-without-password": (
        [replace(SAFE, accounts=(Account("a", True, False),))],
        [replace(SAFE, accounts=(Account("a", False, False), account("b", True)))],
    ),
    "all-may-do-everything": (
        [replace(SAFE, accounts=(account("a", everything=("/",)), account("b", everything=("shop",))))],
        [
            replace(SAFE, accounts=(account("a", everything=("/",)), account("b"))),
            replace(SAFE, accounts=(account("a", everything=("/",)), account("ops", True, ("/",)))),
        ],
    ),
    "amqp-in-clear": (
        [
            replace(SAFE, doors=door("listen.amqp", "0.0.0.0:5672")),
            replace(SAFE, doors=(Door("listen.amqp", "0.0.0.0:5672", False, ("127.0.0.0/8", "10.0.0.0/8")),)),
            replace(SAFE, doors=door("listen.amqp", "[::]:5672")),
            replace(SAFE, doors=door("listen.amqp", "10.0.0.1:5672")),
            replace(SAFE, doors=door("listen.amqp", "broker-1:5672")),
        ],
        [
            replace(SAFE, doors=door("listen.amqp", "localhost:5672")),
            replace(SAFE, doors=door("listen.amqp", "127.0.0.1:5672")),
            replace(SAFE, doors=OUTSIDE),
            replace(SAFE, doors=(Door("listen.amqp", "0.0.0.0:5672", False, ("127.0.0.0/8", "::1")),)),
        ],
    ),
    "console-in-clear": (
        [replace(SAFE, doors=door("listen.console", "0.0.0.0:15672"))],
        [
            replace(SAFE, doors=door("listen.console", "0.0.0.0:15672", True)),
            replace(SAFE, doors=door("listen.console", "[::1]:15672")),
        ],
    ),
    "probes-open": (
        [replace(SAFE, doors=door("listen.probes", "0.0.0.0:15692"))],
        [replace(SAFE, doors=door("listen.probes", "localhost:15692"))],
    ),
    "link-in-clear": (
        [replace(SAFE, links=(Link("far:5672", True, False),))],
        [replace(SAFE, links=(Link("far:5671", True, True), Link("127.0.0.1:5672", False, False)))],
    ),
    "certificate-ends": (
        [
            replace(SAFE, certificates=ending(days=29)),
            replace(SAFE, certificates=ending(days=0)),
            replace(SAFE, certificates=ending(days=-400)),
            replace(SAFE, certificates=(Certificate("listen.tls_ca", "ca.pem", None),)),
            replace(SAFE, certificates=short_lived(7, left=1.7)),
            replace(SAFE, certificates=short_lived(90, left=90.5)),  # good from tomorrow on
        ],
        [
            replace(SAFE, certificates=ending(days=31)),
            replace(SAFE, certificates=short_lived(1, left=0.3)),  # renewed by a program, every day
            replace(SAFE, certificates=short_lived(90, left=29)),
        ],
    ),
    "group-without-secret": (
        [replace(SAFE, group=Group("", False, False))],
        [
            SAFE,
            replace(SAFE, group=Group("node.bind 10.0.0.1", True, True)),
        ],
    ),
    "group-in-clear": (
        [replace(SAFE, group=Group("node.bind 10.0.0.1", True, False))],
        [
            SAFE,
            replace(SAFE, group=Group("", True, False)),
            replace(SAFE, group=Group("node.bind 10.0.0.1", True, True)),
        ],
    ),
    "files-open": (
        [
            replace(SAFE, files=file(0o640)),
            replace(SAFE, files=file(0o601)),
            replace(SAFE, files=file(0o644, 0o037)),
            replace(SAFE, files=file(0o755, folder=True)),
        ],
        [
            replace(SAFE, files=file(0o600)),
            replace(SAFE, files=file(0o440, 0o037)),
            replace(SAFE, files=file(0o2700, folder=True)),
        ],
    ),
    "runs-as-root": ([replace(SAFE, root=True)], [SAFE]),
    "no-memory-alarm": ([replace(SAFE, memory_high=0)], [SAFE]),
    "few-descriptors": (
        [replace(SAFE, descriptors=1024, places=2064)],
        [replace(SAFE, descriptors=65536, places=2064), replace(SAFE, descriptors=None, places=2064)],
    ),
    "no-disk-reserve": ([replace(SAFE, disk_reserve=0)], [SAFE]),
    "no-audit-log": (
        [replace(SAFE, doors=OUTSIDE, audited=False)],
        [SAFE, replace(SAFE, doors=OUTSIDE), replace(SAFE, audited=False)],
    ),
    "console-for-any-name": (
        [replace(SAFE, console_hosts=("proxy", "*"))],
        [replace(SAFE, console_hosts=("proxy",))],
    ),
    "pattern-fits-nothing": ([replace(SAFE, useless_patterns=("policy 'p': it has look-ahead",))], [SAFE]),
}


def of_check(name: str, facts: Facts) -> list[Finding]:
    return [each for each in findings(facts) if each.check == name]


def test_every_check_is_tried() -> None:
    assert list(TABLE) == [check.name for check in CHECKS]
    assert {check.severity for check in CHECKS} == {UNSAFE, ADVICE}


@pytest.mark.parametrize("name", list(TABLE))
def test_a_check_finds_what_is_wrong_and_says_what_mends_it(name: str) -> None:
    for facts in TABLE[name][0]:
        (found,) = of_check(name, facts)
        assert found.text
        assert found.mend


@pytest.mark.parametrize("name", list(TABLE))
def test_a_check_is_silent_where_nothing_is_wrong(name: str) -> None:
    for facts in TABLE[name][1]:
        assert of_check(name, facts) == []


def test_what_is_unsafe_comes_first_and_a_safe_node_has_no_findings() -> None:
    assert findings(SAFE) == []
    both = replace(SAFE, root=True, memory_high=0)
    assert [each.severity for each in findings(both)] == [UNSAFE, ADVICE]


def test_a_list_of_many_users_is_cut() -> None:
    (found,) = of_check("all-administrators", replace(SAFE, accounts=tuple(account(f"u{n}", True) for n in range(40))))
    assert found.text.endswith("u0, u1, u2, u3, u4 and 35 more")


@pytest.mark.parametrize(("mode", "forbidden", "right"), [(0o644, 0o077, 0o600), (0o666, 0o037, 0o640)])
def test_the_mode_that_mends_a_file_is_one_that_is_not_found(mode: int, forbidden: int, right: int) -> None:
    (found,) = of_check("files-open", replace(SAFE, files=file(mode, forbidden)))
    assert found.mend == f"chmod {right:o} /etc/key"
    assert of_check("files-open", replace(SAFE, files=file(right, forbidden))) == []


# Where the facts come from.


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("localhost", True), ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("fe80::1%eth0", False), ("broker", False),
        ("localhost.evil.example", False), ("", False),
    ],
)  # fmt: skip
def test_only_loopback_is_this_host(host: str, here: bool) -> None:
    assert is_this_machine(host) is here


def test_the_settings_of_a_node_are_facts(tmp_path: Path) -> None:
    data, key = tmp_path / "data", tmp_path / "key.pem"
    data.mkdir()
    data.chmod(0o750)
    key.write_text("")
    key.chmod(0o644)
    config = NodeConfig(
        "a",
        data,
        ListenSettings(amqp="0.0.0.0:5672", console="", tls_cert=str(tmp_path / "none.pem"), tls_key=str(key)),
        broker=BrokerSettings(memory_high=0),
        replication=ReplicationSettings(to="amqp://u:p@far:5672 amqp://127.0.0.1:5673"),
    )
    found = {(each.check, each.mend.split()[0]) for each in findings(facts_of(config, NOW))}
    assert found == {
        ("amqp-in-clear", "[listen]"),
        ("certificate-ends", "put"),
        ("files-open", "chmod"),
        ("link-in-clear", "[replication]"),
        ("no-memory-alarm", "[broker]"),
    }
    assert [each.mend for each in of_check("files-open", facts_of(config, NOW))] == [
        f"chmod 700 {data}",
        f"chmod 640 {key}",
    ]


def test_a_node_with_nothing_set_is_safe() -> None:
    assert findings(facts_of(NodeConfig("a"), NOW)) == []


def test_no_fact_holds_a_password() -> None:
    config = NodeConfig("a", replication=ReplicationSettings(to="amqp://u:hidden-word@far:5672"))
    assert "hidden-word" not in repr(facts_of(config, NOW)) + repr(findings(facts_of(config, NOW)))


def test_users_are_accounts_with_what_is_weak_about_them() -> None:
    wide, narrow = Permissions(".*", ".*", ".*"), Permissions(".*", ".*", "")
    assert account_of(User("guest", GUEST_PASSWORD, ("administrator",), {"/": wide})) == Account(
        "guest", True, True, "guest", ("/",)
    )
    assert account_of(User("a", None, ("management",), {"/": narrow})) == Account("a", False, False)


def test_patterns_that_can_no_longer_be_used_are_found_and_whose_they_are() -> None:
    good = User("a", None, (), {"/": Permissions("^a", ".*", "")})
    old = User("b", None, (), {"/": Permissions("", "(?=x)", ".*")})
    vhost = cast(Vhost, SimpleNamespace(name="shop", policies={}, operator_policies={}))
    assert of_running(SAFE, cast(Users, [good]), [vhost]).useless_patterns == ()
    vhost.policies.update(p=Policy("p", "(?!x)", {"max-length": 1}), q=Policy("q", "^x", {"max-length": 1}))
    user, policy = of_running(SAFE, cast(Users, [good, old]), [vhost]).useless_patterns
    assert user.startswith("what user 'b' may write in '/': it has look-ahead")
    assert policy.startswith("policy 'p' of 'shop': it has look-ahead")


def test_administrators_are_tried_with_their_own_names_and_not_too_many_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weak = User("ops", hashed(b"ops", b"salt" * 4), ("administrator",))
    strong = User("eve", hashed(b"long and strange", b"salt" * 4), ("administrator",))
    other = User("shop", weak.password)
    facts = replace(SAFE, accounts=tuple(map(account_of, (weak, strong, other))))
    assert [each.guessed for each in with_guesses(facts, (weak, strong, other)).accounts or ()] == ["ops", "", ""]

    tried: list[bytes] = []
    monkeypatch.setattr("coterie.broker.passwords.Hash.fits", lambda self, password: tried.append(password))
    many = [User(f"u{n}", weak.password, ("administrator",)) for n in range(100)]
    with_guesses(SAFE, many)
    with_guesses(SAFE, many)  # nothing is worked out twice
    assert len(tried) == TRIED_MAX


def test_the_cluster_of_one_host_may_do_without_a_secret_and_is_advised_against_it() -> None:
    port = GroupPort("127.0.0.1:7800", peers=("127.0.0.1:1", "localhost:2"))
    config = NodeConfig("a", cluster=ClusterSettings(size=3), group_port=port)
    assert [(each.check, each.severity) for each in findings(facts_of(config, NOW))] == [
        ("group-without-secret", ADVICE)
    ]


def test_a_credential_of_systemd_may_show_the_mask_of_its_access_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 4)
    secret.chmod(0o440)
    config = NodeConfig("a", secret_file=str(secret))
    with pytest.raises(UserError, match="others can read it"):
        read_secret_file(secret, "secret_file")
    assert of_check("files-open", facts_of(config, NOW))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret_file(secret, "secret_file")
    assert not of_check("files-open", facts_of(config, NOW))
    secret.chmod(0o444)
    with pytest.raises(UserError, match="others can read it"):
        read_secret_file(secret, "secret_file")


def test_a_cluster_that_does_not_encrypt_is_found_and_certificates_of_ones_own_are_looked_at(tmp_path: Path) -> None:
    def of_port(**settings: Any) -> Facts:
        port = GroupPort("0.0.0.0:7800", secret="0123456789abcdef" * 4, **settings)
        return facts_of(NodeConfig("a", cluster=ClusterSettings(size=3), group_port=port), NOW)

    assert findings(of_port()) == []
    assert [each.check for each in findings(of_port(encrypt="never"))] == ["group-in-clear"]
    key = tmp_path / "key"
    key.write_text("")
    key.chmod(0o600)
    own = of_port(certificates=("cert.pem", str(key), "ca.pem"))
    assert [each.setting for each in own.certificates] == ["node.group_tls_cert", "node.group_tls_ca"]
    assert [each.path for each in own.files] == [str(key)]


# The command, without a node.


def test_doctor_looks_at_a_configuration_before_a_node_runs_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("COTERIE_")]:
        monkeypatch.delenv(name)
    file = tmp_path / "node.toml"
    file.write_text('[listen]\namqp = "0.0.0.0:5672"\n')
    assert main(["doctor", "--config", str(file)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^unsafe  AMQP without TLS on 0.0.0.0:5672.*\n +mend: \[listen\] amqps", said, re.MULTILINE)
    assert said.endswith(": 1 thing unsafe\n")
    file.write_text('[node]\nname = "a"\n')
    assert main(["doctor", "--config", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: nothing is unsafe\n"
    assert main(["doctor", "--config", str(tmp_path / "no.toml")]) == 2
