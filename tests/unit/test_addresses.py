"""Allowed networks: which addresses are in them, how they may be written, and what users do with them."""

from __future__ import annotations

import pytest
from test_users import ELSEWHERE, HERE, Door

from coterie.addresses import COMPLAINTS_MAX, AllowList, allow_list
from coterie.broker.users import User, from_record
from coterie.errors import ProtocolError, UserError
from coterie.node.settings import ListenSettings
from coterie.runtime.base import Endpoint


@pytest.mark.parametrize(
    ("networks", "inside", "outside"),
    [
        ([], ["10.0.0.1", "::1", "nonsense", ""], []),
        (["10.0.0.0/8"], ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3", "::FFFF:a01:203"], ["11.0.0.0", "::1", ""]),
        (["10.1.2.3"], ["10.1.2.3"], ["10.1.2.4"]),
        (["::ffff:10.0.0.0/104"], ["10.1.2.3", "::ffff:10.1.2.3"], ["11.1.2.3", "::ffff:11.0.0.0"]),
        (["2001:db8::/32", "::1"], ["2001:db8::5", "::1", "2001:DB8:0::"], ["2001:db9::", "127.0.0.1"]),
        (["fe80::/10"], ["fe80::1%eth0", "fe80::1"], ["ff80::1%eth0"]),
        (["0.0.0.0/0"], ["1.2.3.4", "::ffff:1.2.3.4"], ["::1"]),
        (["::/0"], ["::1"], ["1.2.3.4", "::ffff:1.2.3.4"]),
    ],
)  # fmt: skip
def test_an_address_is_in_its_networks_however_it_comes(
    networks: list[str], inside: list[str], outside: list[str]
) -> None:
    allowed = allow_list(networks, "here")
    assert [host for host in (*inside, *outside) if allowed.allows(host)] == inside
    assert allow_list(allowed.texts(), "again") == allowed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("10.0.0.1/8", "write 10.0.0.0/8 or 10.0.0.1"), ("10.0.0.0/33", "is no address or network"),
        ("localhost", "is no address"), (7, "is no address"), (None, "is no address"), ("1" * 5000, "is no address"),
        ("10.0.0.0/255.0.255.0", "is no address"), ("::1/129", "is no address"), ("", "is no address"),
        ("localhost", "localhost is 127.0.0.1 and ::1"), ("fe80::1%eth0", "write fe80::1$"),
        ("fe80::%eth0/64", "has a zone"),
    ],
)  # fmt: skip
def test_what_is_no_network_is_refused_with_the_place_and_what_to_write(text: object, said: str) -> None:
    with pytest.raises(UserError, match=f"^listen.amqp_allow: .*{said}"):
        allow_list([text], "listen.amqp_allow")


def test_a_door_is_shut_for_others_and_remembers_only_so_many() -> None:
    allowed = allow_list(["10.0.0.0/8"], "here")
    assert allowed.admits("10.0.0.1")
    for number in range(3 * COMPLAINTS_MAX):
        assert not allowed.admits(f"11.0.{number % 256}.{number // 256}")
    assert len(allowed._told) <= COMPLAINTS_MAX


def test_settings_of_a_door_that_is_shut_are_refused() -> None:
    with pytest.raises(UserError, match="amqps_allow has no effect"):
        ListenSettings(amqps_allow=("10.0.0.0/8",)).allowed("amqps")
    assert not ListenSettings().allowed("console")


def test_a_user_comes_from_its_networks_only_and_that_is_kept() -> None:
    door = Door()
    door.put("shop")
    door.put("cert", None)
    answers: list[bool] = []
    for name in ("shop", "cert"):
        door.users.allow_from(name, allow_list(["10.1.0.0/16"], "x"), answers.append)
    door.users.allow_from("nobody", AllowList(), answers.append)
    door.run()
    assert answers == [True, True, False]
    assert isinstance(door.login("shop", "secret", HERE), ProtocolError)
    assert isinstance(door.login("shop", "secret", Endpoint("::ffff:10.1.1.1", 1)), User)
    assert isinstance(door.login("shop", "secret", ELSEWHERE), User)
    assert isinstance(door.login("shop", "secret", HERE), ProtocolError)  # though the password is known by now
    certified: list[User | ProtocolError] = []
    door.users.login("EXTERNAL", b"", HERE, "cert", certified.append)
    door.users.login("EXTERNAL", b"", ELSEWHERE, "cert", certified.append)
    assert [isinstance(each, User) for each in certified] == [False, True]
    record = door.store.records["user", "shop"]
    assert record is not None
    assert record["allow"] == ["10.1.0.0/16"]
    assert from_record("shop", record).allow == allow_list(["10.1.0.0/16"], "x")
    door.put("shop", "another")  # a new password changes nothing else
    assert isinstance(door.login("shop", "another", HERE), ProtocolError)
    for nonsense in (["x"], 7, [None]):
        with pytest.raises(UserError):
            from_record("shop", {**record, "allow": nonsense})
