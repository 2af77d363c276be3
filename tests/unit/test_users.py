"""Users: who may log in, from where, how often, and what they may do."""

from __future__ import annotations

import base64
import hashlib
import time

import pytest

from coterie.addresses import is_loopback
from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.amqp.wire.tables import encode_table
from coterie.broker.attempts import KEPT_MAX, WAITING_OF_ONE, Attempts
from coterie.broker.passwords import NOTHING, Hash, fits_slowly, given
from coterie.broker.storage import NullStore, Record
from coterie.broker.users import USER, Permissions, User, Users, UserSettings, from_record
from coterie.errors import ProtocolError, UserError
from coterie.runtime.base import Endpoint
from coterie.sim.clock import World
from coterie.sim.network import Fabric
from coterie.sim.node import Node

HERE, ELSEWHERE = Endpoint("127.0.0.1", 40000), Endpoint("10.1.1.1", 40000)


class Kept(NullStore):
    """Remembers the records."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], Record] = {}

    def save(self, kind: str, key: str, value: Record | None) -> None:
        if value is None:
            self.records.pop((kind, key), None)
        else:
            self.records[kind, key] = value


class Door:
    """Users on the simulated runtime."""

    def __init__(self, settings: UserSettings | None = None) -> None:
        self.world = World(1)
        self.runtime = Node(self.world, Fabric(self.world), "n1").boot()
        self.store = Kept()
        self.users = Users(self.runtime, self.store, settings)

    def put(self, name: str, password: str | Hash | None = "secret", tags: tuple[str, ...] = ()) -> User:
        answers: list[User | UserError] = []
        self.users.put(name, password, tags, answers.append)
        self.run()
        assert isinstance(answers[0], User)
        return answers[0]

    def run(self, seconds: float = 1.0) -> None:
        self.world.run(self.world.time + seconds)

    def login(
        self, name: str, password: str, peer: Endpoint = ELSEWHERE, mechanism: str = "PLAIN"
    ) -> User | ProtocolError:
        if mechanism == "PLAIN":
            response = f"\0{name}\0{password}".encode()
        else:
            response = encode_table({"LOGIN": name, "PASSWORD": password})[4:]
        return self.answer(mechanism, response, peer)

    def answer(
        self, mechanism: str, response: bytes, peer: Endpoint = ELSEWHERE, certificate: str | None = None
    ) -> User | ProtocolError:
        answers: list[User | ProtocolError] = []
        self.users.login(mechanism, response, peer, certificate, answers.append)
        self.run()
        assert len(answers) == 1
        return answers[0]


@pytest.fixture
def door() -> Door:
    return Door()


def refused(answer: User | ProtocolError) -> bool:
    return isinstance(answer, ProtocolError) and answer.reply_code == ACCESS_REFUSED


@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_the_right_password_logs_in_and_a_wrong_one_does_not(door: Door, mechanism: str) -> None:
    user = door.put("ann")
    assert door.login("ann", "secret", mechanism=mechanism) is user
    assert refused(door.login("ann", "Secret", mechanism=mechanism))
    assert refused(door.login("ann", "", mechanism=mechanism))


def test_a_wrong_password_and_an_unknown_name_read_alike(door: Door) -> None:
    door.put("ann")
    wrong, unknown = door.login("ann", "no"), door.login("bob", "no")
    assert str(wrong) == str(unknown)
    assert refused(wrong)


@pytest.mark.parametrize("response", [b"", b"\0ann", b"\0ann\0se\0cret", b"\0\xff\xfe\0x", b"\1\2\3"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "AMQPLAIN"])
def test_garbage_instead_of_a_login_is_refused(door: Door, mechanism: str, response: bytes) -> None:
    door.put("ann")
    assert refused(door.answer(mechanism, response))


def test_a_password_is_never_kept_as_it_is(door: Door) -> None:
    door.put("ann", "correct horse")
    assert "correct horse" not in str(door.store.records)


def test_the_same_password_of_two_users_is_kept_differently(door: Door) -> None:
    one, two = door.put("ann"), door.put("bob")
    assert one.password is not None
    assert two.password is not None
    assert one.password.text != two.password.text


def test_a_changed_password_counts_at_once(door: Door) -> None:
    door.put("ann", "old")
    assert not refused(door.login("ann", "old"))
    door.put("ann", "new")
    assert refused(door.login("ann", "old"))
    assert not refused(door.login("ann", "new"))


def test_users_come_back_from_their_records(door: Door) -> None:
    door.put("ann", tags=("management",))
    door.users.permit("ann", "/", Permissions("^a", ".*", ""), lambda _: None)
    again = Door()
    again.users.restore([(key, record) for (kind, key), record in door.store.records.items() if kind == USER])
    user = again.login("ann", "secret")
    assert isinstance(user, User)
    assert user.tags == ("management",)
    assert user.may("/", "configure", "apple")
    assert again.users.get("guest") is None


def test_a_new_broker_has_guest_from_this_host_only(door: Door) -> None:
    door.users.restore([])
    assert not refused(door.login("guest", "guest", HERE))
    assert refused(door.login("guest", "guest", ELSEWHERE))


def test_a_new_broker_has_no_guest_if_told_so() -> None:
    door = Door(UserSettings(guest=False))
    door.users.restore([])
    assert refused(door.login("guest", "guest", HERE))


def test_a_certificate_logs_in_the_user_of_its_name(door: Door) -> None:
    user = door.put("ann", None)
    assert door.answer("EXTERNAL", b"", certificate="ann") is user
    assert refused(door.answer("EXTERNAL", b"", certificate="bob"))
    assert refused(door.answer("EXTERNAL", b"", certificate=None))


def test_a_user_without_a_password_cannot_log_in_with_one(door: Door) -> None:
    door.put("ann", None)
    assert refused(door.login("ann", ""))
    assert refused(door.login("ann", "x"))


def address(number: int) -> Endpoint:
    return Endpoint(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 40000)


def waits(door: Door, name: str, password: str, peer: Endpoint) -> float:
    """Seconds until the right password is taken."""
    answers: list[User | ProtocolError] = []
    before = door.world.time
    door.users.login("PLAIN", f"\0{name}\0{password}".encode(), peer, None, answers.append)
    while not answers:
        door.run(0.1)
    assert not refused(answers[0])
    return door.world.time - before


def test_wrong_logins_of_one_user_do_not_lock_out_others_behind_the_same_address() -> None:
    door = Door(UserSettings(login_failures_max=3))
    door.put("ann")
    door.put("bob")
    for _ in range(4):
        assert refused(door.login("bob", "no"))
    assert refused(door.login("bob", "secret"))
    assert waits(door, "ann", "secret", ELSEWHERE) < 1


def test_nobody_locks_a_user_out_from_elsewhere() -> None:
    door = Door(UserSettings(login_failures_max=3, user_failures_max=10, login_delay=2.0))
    door.put("ops")
    assert not refused(door.login("ops", "secret", address(1)))
    for number in range(100, 160):
        door.users.login("PLAIN", b"\0ops\0guess", address(number), None, lambda _: None)
        door.run(0.1)
    assert waits(door, "ops", "secret", address(1)) < 1, "where it has logged in before it does not wait"
    assert 1.9 < waits(door, "ops", "secret", address(2)) < 3


def test_who_tries_many_users_from_one_address_is_slowed() -> None:
    door = Door(UserSettings(address_failures_max=10, login_delay=2.0))
    door.put("ann")
    for number in range(10):
        assert refused(door.login(f"u{number}", "no"))
    assert 1.9 < waits(door, "ann", "secret", ELSEWHERE) < 3
    assert waits(door, "ann", "secret", HERE) < 1


def test_logins_that_wait_are_few_and_those_of_one_address_do_not_keep_others_out() -> None:
    door = Door(UserSettings(user_failures_max=1, login_delay=2.0))
    door.put("ann")
    door.login("ann", "no", address(1))
    answers: list[User | ProtocolError] = []
    for _ in range(1000):
        door.users.login("PLAIN", b"\0ann\0no", address(1), None, answers.append)
    assert len(answers) == 1000 - WAITING_OF_ONE
    assert waits(door, "ann", "secret", address(2)) < 3
    assert len(answers) == 1000


def test_what_is_remembered_of_wrong_logins_is_bounded() -> None:
    attempts = Attempts(Door().runtime, UserSettings())
    for number in range(KEPT_MAX + 1000):
        attempts.failed(f"user{number}", address(number).host)
        attempts.succeeded(f"user{number}", address(number).host)
        attempts.failed(f"user{number}", address(number).host)
    assert {len(attempts.pairs), len(attempts.addresses), len(attempts.users), len(attempts._good)} == {KEPT_MAX}


def test_checks_of_one_address_are_half_of_all() -> None:
    door = Door(UserSettings(logins_max=4))
    door.put("ann")
    answers: list[User | ProtocolError] = []
    for number in range(10):
        door.users.login("PLAIN", f"\0ann\0guess{number}".encode(), ELSEWHERE, None, answers.append)
    assert len(answers) == 8
    assert waits(door, "ann", "secret", HERE) < 1


@pytest.mark.parametrize("password", ["secret", "wrong"])
def test_an_imported_hash_is_replaced_at_the_first_good_login(door: Door, password: str) -> None:
    salt = b"salt"
    text = base64.b64encode(salt + hashlib.sha256(salt + b"secret").digest()).decode()
    old = given("rabbit_password_hashing_sha256", text)
    user = door.put("ann", old, ("monitoring",))
    answer = door.login("ann", password)
    assert (answer is user) == (password == "secret")
    if password == "wrong":
        assert user.password == old
        return
    assert user.password is not None
    assert user.password.algorithm == "scrypt"
    assert user.tags == ("monitoring",)
    assert door.store.records[USER, "ann"]["algorithm"] == "scrypt"
    assert door.login("ann", "secret") is user
    assert refused(door.login("ann", "wrong"))


def test_a_login_that_cannot_be_right_takes_a_check_of_a_password_too(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long it takes would tell which users there are, which have a password, and which may come from there."""
    door.put("by-certificate", None)
    door.put("guest", "guest")
    checked: list[Hash] = []

    def check(kept: Hash, password: bytes, cost: int) -> bool:
        checked.append(kept)
        return fits_slowly(kept, password, cost)

    monkeypatch.setattr("coterie.broker.users.fits_slowly", check)
    for name in ("nobody", "by-certificate", "guest"):
        assert refused(door.login(name, "guest", ELSEWHERE))
    assert checked == [NOTHING] * 3


def test_an_imported_hash_takes_as_long_to_check_as_that_of_nobody() -> None:
    foreign = given("rabbit_password_hashing_sha256", base64.b64encode(bytes(36)).decode())
    spent = []
    for kept in (NOTHING, foreign):
        began = time.process_time()
        for _ in range(3):
            assert not fits_slowly(kept, b"guess")
        spent.append(time.process_time() - began)
    assert spent[1] > spent[0] / 3


def test_too_many_wrong_logins_from_an_address_lock_it_out_for_a_while() -> None:
    door = Door(UserSettings(login_failures_max=3, login_window=60.0))
    door.put("ann")
    for _ in range(3):
        assert refused(door.login("ann", "no"))
    assert refused(door.login("ann", "secret"))
    assert not refused(door.login("ann", "secret", HERE))
    door.run(61.0)
    assert not refused(door.login("ann", "secret"))


def test_logins_that_are_refused_unheard_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(UserSettings(login_failures_max=3))
    door.put("ann")
    for _ in range(3):
        assert refused(door.login("ann", "no"))
    answers: list[User | ProtocolError] = []
    for _ in range(500):
        door.users.login("PLAIN", b"\0ann\0no", ELSEWHERE, None, answers.append)
    assert len(answers) == 500
    assert len([each for each in caplog.messages if "unheard" in each]) == 1


def test_clients_that_come_back_all_at_once_are_let_in_by_one_check_and_others_are_not_turned_away() -> None:
    door = Door(UserSettings(logins_max=2))
    user = door.put("ann")
    answers: list[User | ProtocolError] = []
    for _ in range(100):
        door.users.login("PLAIN", b"\0ann\0secret", ELSEWHERE, None, answers.append)
        door.users.login("PLAIN", b"\0ann\0wrong", HERE, None, answers.append)
    door.users.login("PLAIN", b"\0ann\0another", ELSEWHERE, None, answers.append)
    assert len(answers) == 1, "a third password is one too many"
    assert refused(answers.pop())
    door.run()
    assert len(answers) == 200
    assert answers.count(user) == 100
    assert sum(map(refused, answers)) == 100


def test_a_password_that_was_changed_while_it_was_checked_lets_nobody_in(door: Door) -> None:
    door.put("ann", "old")
    answers: list[User | ProtocolError] = []
    door.users.login("PLAIN", b"\0ann\0old", ELSEWHERE, None, answers.append)
    changed = given("rabbit_password_hashing_sha256", base64.b64encode(bytes(36)).decode())
    door.users.put("ann", changed, (), lambda _: None)
    door.run()
    assert refused(answers[0])
    assert refused(door.login("ann", "old"))


def test_a_deleted_user_is_gone_and_whoever_listens_is_told(door: Door) -> None:
    door.put("ann")
    told: list[str] = []
    door.users.removed.append(told.append)
    answers: list[bool] = []
    door.users.delete("ann", answers.append)
    door.users.delete("ann", answers.append)
    assert (answers, told) == ([True, False], ["ann"])
    assert refused(door.login("ann", "secret"))


@pytest.mark.parametrize(
    ("pattern", "name", "may"),
    [(".*", "q", True), ("^a", "ab", True), ("^a", "ba", False), ("b", "abc", True), ("", "q", False), ("", "", True)],
)
def test_permissions_are_patterns_that_are_searched_for(door: Door, pattern: str, name: str, may: bool) -> None:
    user = door.put("ann")
    door.users.permit("ann", "/", Permissions(read=pattern), lambda _: None)
    assert user.may("/", "read", name) is may
    assert not user.may("/other", "read", name)


def test_a_taken_permission_counts_from_the_next_question_on(door: Door) -> None:
    user = door.put("ann")
    door.users.permit("ann", "/", Permissions(".*", ".*", ".*"), lambda _: None)
    assert user.may("/", "write", "x")
    door.users.permit("ann", "/", None, lambda _: None)
    assert not user.may("/", "write", "x")
    assert not user.may_enter("/")


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(UserError, match="no regular expression"):
        Permissions(read="(").check()
    with pytest.raises(UserError, match="look-ahead, which RE2 does not know"):
        Permissions(read="^(?!secret)").check()


def test_a_kept_pattern_that_is_none_any_more_grants_nothing_and_its_user_stays() -> None:
    record = User("ann", None, permissions={"/": Permissions(".*", "^(?!secret)", "(")}).to_record()
    ann = from_record("ann", record)
    assert ann.may("/", "configure", "q")
    assert not any(ann.may("/", what, name) for what in ("write", "read") for name in ("q", "secret", ""))


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_names_and_passwords_that_cannot_be_are_refused(door: Door, name: str) -> None:
    answers: list[User | UserError] = []
    door.users.put(name, "secret", (), answers.append)
    door.users.put("ann", "", (), answers.append)
    assert all(isinstance(answer, UserError) for answer in answers)
    assert len(answers) == 2


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_hashes_from_definitions_of_rabbitmq_are_understood(door: Door, algorithm: str) -> None:
    salt = b"\1\2\3\4"
    raw = salt + hashlib.new(algorithm, salt + b"secret").digest()
    kept = given(f"rabbit_password_hashing_{algorithm}", base64.b64encode(raw).decode())
    user = door.put("ann", kept)
    assert door.login("ann", "secret") is user
    assert refused(door.login("ann", "other"))


@pytest.mark.parametrize(("algorithm", "text"), [("md5", "QUJD"), ("scrypt", "not base64!")])
def test_hashes_that_nobody_understands_are_refused(algorithm: str, text: str) -> None:
    with pytest.raises(UserError):
        given(algorithm, text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("10.0.0.1", False)],
)
def test_this_host_is_known_by_all_of_its_loopback_addresses(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    assert not is_loopback("localhost.example")
