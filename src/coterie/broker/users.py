"""Who may log in, and what they may do where.

Promises: passwords are checked off the loop, against hashes; wrong ones, unknown names, too many attempts read alike.
`guest` comes in from this host only. No secret is ever logged. What a user may do is decided by three patterns for each
vhost (configure, write, read), as RabbitMQ has them: a change counts from the next command on.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from coterie import patterns
from coterie.addresses import AllowList, allow_list, is_loopback
from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.amqp.wire.tables import decode_table
from coterie.auditlog.log import EXCHANGE as AUDIT_EXCHANGE
from coterie.broker import validation
from coterie.broker.attempts import Attempts
from coterie.broker.journal import restore_attributes, restore_key
from coterie.broker.passwords import COST, NOTHING, SALT_SIZE, SCRYPT, Hash, fits_slowly, given, hashed
from coterie.broker.storage import Store
from coterie.broker.tokens import BadToken, Refusals, Tokens, looks_like_token
from coterie.broker.topic_permissions import TopicPermissions, Topics, topics_from_record, topics_to_record
from coterie.crowd import Crowd
from coterie.errors import ProtocolError, UserError
from coterie.logs import Log
from coterie.runtime.base import Endpoint, Runtime
from coterie.settings import setting

if TYPE_CHECKING:
    from coterie.broker.broker import Broker

log = Log(__name__)

USER: Final = "user"
"""The kind of their records in the store."""
GUEST: Final = "guest"
GUEST_PASSWORD: Final = Hash(SCRYPT, "AAAAAAAAAAAAAAAAAAAAAC1erSUadLMN45lXFt0ozMrxirn/TSkvdhrpNSukFExB")
"""`guest`, with a salt of zeros: known to everybody, good for this host only, and no reason to hash at every start."""
ADMINISTRATOR: Final = "administrator"
REPLICATOR: Final = "replicator"
"""May act as the link of another broker (`replication.permission`); it lets nobody into the console."""
MONITORING: Final = "monitoring"
TAGS: Final = (ADMINISTRATOR, MONITORING, "policymaker", "management")
NAME_MAX: Final = validation.NAME_MAX
_CHANGEABLE: Final = ("password", "tags", "permissions", "limits", "topics", "allow")
RENEW_TIMEOUT: Final = 5.0
"""Seconds that a login waits for its user's hash to be replaced."""
ANSWERS_MAX: Final = 10_000
"""Answers that a user's permissions remember."""


@dataclass(frozen=True, slots=True)
class UserSettings:
    """How users log in."""

    guest: bool = setting(
        True,
        "whether a new broker has the user guest, password guest, all rights, this host only; the same on every broker "
        "with which a cluster begins",
    )
    loopback_users: tuple[str, ...] = setting((GUEST,), "users that come in from this host only")
    login_failures_max: int = setting(
        20, "wrong logins of one user from one address within login_window; then these are refused unheard", minimum=1
    )
    address_failures_max: int = setting(
        200, "wrong logins of any users from one address within login_window; then each waits for login_delay",
        minimum=1,
    )  # fmt: skip
    user_failures_max: int = setting(
        100,
        "wrong logins of one user from anywhere within login_window; then each waits, but where it logged in before",
        minimum=1,
    )
    login_delay: float = setting(2.0, "how long such a login waits before it is looked at", unit="s", minimum=0)
    login_window: float = setting(60.0, "how long a wrong login counts", unit="s", minimum=0.1)
    logins_max: int = setting(
        64, "different passwords that are being checked, half of them of one address; more are refused", minimum=1
    )
    users_max: int = setting(100_000, "users that a broker may have", minimum=1)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Three patterns, searched for in the names of queues and exchanges; an empty one fits nothing."""

    configure: str = ""
    write: str = ""
    read: str = ""

    def check(self) -> None:
        """Raises UserError. What is kept already is not checked: a pattern that is none grants nothing."""
        for pattern in (self.configure, self.write, self.read):
            patterns.check(pattern)


@dataclass(slots=True, eq=False)
class User:
    """Somebody who may log in."""

    name: str
    password: Hash | None
    """None: not by password, only by certificate."""
    tags: tuple[str, ...] = ()
    permissions: dict[str, Permissions] = field(default_factory=dict)
    """By vhost; a vhost that is not there is closed to the user."""
    limits: dict[str, int] = field(default_factory=dict)
    """max-connections, max-channels."""
    topics: Topics = field(default_factory=dict)
    """What the routing keys of topic exchanges must be like."""
    allow: AllowList = field(default_factory=AllowList)
    """Where it may come from."""
    expires: float | None = None
    """By the wall clock, for one that a token describes; None: never."""
    _answers: dict[tuple[str, str, str], bool] = field(default_factory=dict)

    def may_enter(self, vhost: str) -> bool:
        return vhost in self.permissions

    def may(self, vhost: str, what: str, resource: str) -> bool:
        """`what`: configure, write or read. Whatever patterns or scopes say, the audit log is not for everybody."""
        if resource == AUDIT_EXCHANGE and vhost == "/" and not self._may_audit(what):
            return False
        return self._granted(vhost, what, resource)

    def _granted(self, vhost: str, what: str, resource: str) -> bool:
        key = vhost, what, resource
        answer = self._answers.get(key)
        if answer is None:
            granted = self.permissions.get(vhost)
            pattern = "" if granted is None else str(getattr(granted, what))
            answer = patterns.fits(pattern, resource) if pattern else not resource and granted is not None
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            self._answers[key] = answer
        return answer

    def _may_audit(self, what: str) -> bool:
        """Who reads there sees what everybody does; who writes there could make it up."""
        return self.administrator or (what == "read" and MONITORING in self.tags)

    def may_topic(self, vhost: str, exchange: str, what: str, key: str) -> bool:
        """Whether the user may write to, or read from, a topic exchange with that routing key."""
        granted = self.topics.get(vhost, {}).get(exchange)
        return granted is None or granted.allows(what, key, self.name, vhost)

    @property
    def restricts_topics(self) -> bool:
        """Whether `may_topic` must be asked for each message."""
        return bool(self.topics)

    def changed(self) -> None:
        self._answers.clear()

    @property
    def administrator(self) -> bool:
        return ADMINISTRATOR in self.tags

    @property
    def token(self) -> bool | None:
        """Whether a token describes it, for the audit log: a stored user of that name is somebody else. None: no."""
        return True if self.expires is not None else None

    def to_record(self) -> dict[str, object]:
        password = self.password
        return {
            "algorithm": password.algorithm if password else "",
            "password": password.text if password else "",
            "tags": list(self.tags),
            "permissions": {vhost: [p.configure, p.write, p.read] for vhost, p in self.permissions.items()},
            "limits": dict(self.limits),
            "topics": topics_to_record(self.topics),
            **({"allow": self.allow.texts()} if self.allow else {}),
        }


def from_record(name: str, record: dict[str, object]) -> User:
    """Raises UserError if the record makes no sense."""
    algorithm, text = record.get("algorithm"), record.get("password")
    tags, permissions, limits = record.get("tags"), record.get("permissions"), record.get("limits")
    allow = record.get("allow", [])
    if not (isinstance(tags, list) and isinstance(permissions, dict) and isinstance(limits, dict)):
        raise UserError(f"the record of the user '{name}' makes no sense")
    return User(
        name,
        given(str(algorithm), str(text)) if algorithm else None,
        tuple(map(str, tags)),
        {str(vhost): Permissions(*map(str, granted)) for vhost, granted in permissions.items()},
        {str(limit): int(value) for limit, value in limits.items()},
        topics_from_record(record.get("topics")),
        allow_list(allow if isinstance(allow, list) else [allow], f"the record of the user '{name}'"),
    )


Login = tuple[str, Endpoint, Callable[[User | ProtocolError], None]]
"""Somebody who waits to be let in: by which mechanism, from where, whom to tell."""


Kept = dict[str, object]
KeptSo = Callable[[bool | ProtocolError], None]
"""Called when it is durable; False: it was changed by somebody else; or with the reason why it cannot be kept."""
KeepRecord = Callable[[str, str, Kept | None, Kept | None, KeptSo], None]
"""Kind, name, the record, and what it was."""


class Users:
    """All users of a broker; front doors ask it."""

    def __init__(self, runtime: Runtime, store: Store, settings: UserSettings | None = None) -> None:
        self._runtime = runtime
        self._store = store
        self._settings = settings or UserSettings()
        self._users: dict[str, User] = {}
        self._checking: dict[tuple[str, bytes, bool], list[Login]] = {}
        """Passwords that are being checked. All who come with the same one meanwhile wait for the one answer: when a
        broker comes back, so do all clients of a user, at once."""
        most = self._settings.logins_max
        self._checks: Crowd[tuple[str, bytes, bool]] = Crowd(most, max(1, most // 2))
        """The same, by the address of whoever came first with it."""
        self._attempts = Attempts(runtime, self._settings)
        self._known: dict[str, bytes] = {}
        """By user: a keyed digest of the password that was right last, so that reconnecting is cheap."""
        self._secret = runtime.entropy(32)
        self.removed: list[Callable[[str], None]] = []
        """Called with the name of a user who may not stay: its connections are to be closed."""
        self._kept: dict[tuple[str, str], dict[str, object]] = {}
        """The broker's records, if users are among them."""
        self._keep_record: KeepRecord = self._save_here
        self._refusals = Refusals()
        self.tokens: Tokens | None = None
        """Checks tokens; None: nobody logs in by one."""

    def share(self, broker: Broker) -> None:
        """Keep users with the broker's other records, which all brokers of a cluster have."""
        self._keep_record = broker.keep_record
        self._kept = broker.records
        for user in self._users.values():
            self._kept[USER, user.name] = user.to_record()
        broker.begins_with[USER, GUEST] = self._new_guest().to_record()
        broker.record_changed.append(self._record_changed)

    def restore(self, records: Iterable[tuple[str, dict[str, object]]]) -> None:
        """After recovery. A broker that never had a user gets `guest`."""
        for name, record in records:
            try:
                self._users[name] = from_record(name, record)
            except UserError as error:
                log.warning("a user is lost", why=str(error))
        if not self._users and self._settings.guest:
            guest = self._users[GUEST] = self._new_guest()
            self._store.save(USER, GUEST, guest.to_record())

    def _new_guest(self) -> User:
        everything = {"/": Permissions(".*", ".*", ".*")}
        cost = self._runtime.hash_cost
        password = GUEST_PASSWORD if cost == COST else hashed(GUEST.encode(), bytes(SALT_SIZE), cost)
        return User(GUEST, password, (ADMINISTRATOR,), everything)

    # Looking.

    def __iter__(self) -> Iterator[User]:
        return iter(self._users.values())

    def __len__(self) -> int:
        return len(self._users)

    def get(self, name: str) -> User | None:
        return self._users.get(name)

    @property
    def token_max(self) -> int:
        """Bytes of the longest token that is looked at; a password is never so long."""
        return 0 if self.tokens is None else self.tokens.token_max

    # Changing. Each `done` comes when it is durable.

    def put(
        self,
        name: str,
        password: str | Hash | None,
        tags: Iterable[str],
        done: Callable[[User | UserError], None],
    ) -> None:
        """Add a user, or change password and tags of one who is there."""
        if validation.name(name):
            done(UserError(f"a user's name has 1 to {NAME_MAX} bytes"))
            return
        if name not in self._users and len(self._users) >= self._settings.users_max:
            done(UserError("there are too many users (users_max)"))
            return
        kept = tuple(dict.fromkeys(tags))
        if not isinstance(password, str):
            self._put(name, password, kept, done)
            return
        if not password:
            done(UserError("a password must not be empty; leave it out for a user who logs in by certificate"))
            return
        salt, text = self._runtime.entropy(SALT_SIZE), password.encode()

        def ready(result: Hash | Exception) -> None:
            if isinstance(result, Exception):
                done(UserError(f"the password cannot be hashed: {result}"))
            else:
                self._put(name, result, kept, done)

        self._runtime.offload(lambda: hashed(text, salt, self._runtime.hash_cost), ready)

    def _put(
        self, name: str, password: Hash | None, tags: tuple[str, ...], done: Callable[[User | UserError], None]
    ) -> None:
        def change(user: User) -> None:
            user.password, user.tags = password, tags

        def changed(so: bool) -> None:
            failed = UserError(f"the user '{name}' cannot be kept: the broker's log says why")
            done(self._users.get(name) or User(name, password, tags) if so else failed)

        self._change(name, change, changed, add=True)

    def delete(self, name: str, done: Callable[[bool], None]) -> None:
        """Its connections end. False if there is no such user."""
        if name not in self._users:
            done(False)
        else:
            was = self._kept.get((USER, name))
            self._keep_record(USER, name, None, was, lambda kept: self._deleted(name, kept, done))

    def _deleted(self, name: str, kept: bool | ProtocolError, done: Callable[[bool], None]) -> None:
        if kept is not False:
            done(kept is True)
        else:
            self.delete(name, done)  # somebody has changed it meanwhile

    def permit(self, name: str, vhost: str, permissions: Permissions | None, done: Callable[[bool], None]) -> None:
        """None takes them away. False if there is no such user."""

        def change(user: User) -> None:
            if permissions is None:
                user.permissions.pop(vhost, None)
            else:
                user.permissions[vhost] = permissions

        self._change(name, change, done)

    def permit_topic(
        self, name: str, vhost: str, exchange: str, topics: TopicPermissions | None, done: Callable[[bool], None]
    ) -> None:
        """The keys of one topic exchange; None: any. False if there is no such user."""

        def change(user: User) -> None:
            if topics is not None:
                user.topics.setdefault(vhost, {})[exchange] = topics
            elif vhost in user.topics:
                user.topics[vhost].pop(exchange, None)
                if not user.topics[vhost]:
                    del user.topics[vhost]

        self._change(name, change, done)

    def limit(self, name: str, limit: str, value: int | None, done: Callable[[bool], None]) -> None:
        def change(user: User) -> None:
            if value is None:
                user.limits.pop(limit, None)
            else:
                user.limits[limit] = value

        self._change(name, change, done)

    def allow_from(self, name: str, allow: AllowList, done: Callable[[bool], None]) -> None:
        """An empty list: from anywhere. Connections that are open stay. False if there is no such user."""

        def change(user: User) -> None:
            user.allow = allow

        self._change(name, change, done)

    def forget_vhost(self, vhost: str) -> None:
        """It is deleted: nobody has rights in it any more."""
        journal = self._store.journal
        for user in self._users.values():
            if journal.on:
                self._keep(user.name, user)
                journal.note(restore_key, self._kept, (USER, user.name), self._kept.get((USER, user.name)))
            topics = user.topics.pop(vhost, None)
            if user.permissions.pop(vhost, None) is not None or topics:
                user.changed()
                self._kept[USER, user.name] = record = user.to_record()
                self._store.save(USER, user.name, record)

    def _change(
        self, name: str, change: Callable[[User], None], done: Callable[[bool], None], add: bool = False
    ) -> None:
        """A copy is changed and kept; once more if another broker was faster. False if there is no such user, or it
        cannot be kept."""
        user = self._users.get(name)
        if user is None and not add:
            done(False)
            return
        draft = User(name, None) if user is None else from_record(name, user.to_record())
        change(draft)

        def kept(so: bool | ProtocolError) -> None:
            if so is not False:
                done(so is True)
            else:
                self._change(name, change, done, add)

        self._keep_record(USER, name, draft.to_record(), self._kept.get((USER, name)), kept)

    def _save_here(self, kind: str, name: str, record: Kept | None, was: Kept | None, done: KeptSo) -> None:
        self._store.save(kind, name, record)
        self._record_changed(kind, name, record)
        self._store.when_synced(self._store.written(), lambda: done(True))

    def _record_changed(self, kind: str, name: str, record: dict[str, object] | None) -> None:
        """Here, or on another broker of the cluster. Those who are logged in notice."""
        if kind != USER:
            return
        user = self._users.get(name)
        changed = None if record is None else from_record(name, record)
        self._keep(name, user)
        if changed is None:
            if self._users.pop(name, None) is not None:
                self._known.pop(name, None)
                for listener in self.removed:
                    self._store.journal.after(listener, name)
            return
        if user is None:
            self._users[name] = changed
            return
        if user.password != changed.password:
            self._known.pop(name, None)
        user.password, user.tags = changed.password, changed.tags
        user.permissions, user.limits, user.topics = changed.permissions, changed.limits, changed.topics
        user.allow = changed.allow
        user.changed()

    def _keep(self, name: str, user: User | None) -> None:
        """What a step may have to take back."""
        journal = self._store.journal
        if journal.on:
            journal.note(restore_key, self._users, name, user)
            if user is not None:
                copies = dict(user.permissions), dict(user.limits), user.topics.copy()
                journal.note(restore_attributes, user, _CHANGEABLE, (user.password, user.tags, *copies, user.allow))
                journal.note(user.changed)

    # Logging in.

    def login(
        self,
        mechanism: str,
        response: bytes,
        peer: Endpoint,
        certificate: str | None,
        done: Callable[[User | ProtocolError], None],
    ) -> None:
        """PLAIN, AMQPLAIN or EXTERNAL, as a client answers connection.start."""
        if mechanism == "EXTERNAL":
            found = self._users.get(certificate or "")
            fits = found is not None and self.may_come_from(found.name, peer.host)
            self._finish(fits, certificate, found, mechanism, peer, done)
            return
        credentials = _plain(response) if mechanism == "PLAIN" else _amqplain(response)
        if credentials is None:
            self._finish(False, None, None, mechanism, peer, done)
        elif self.tokens is not None and looks_like_token(credentials[1]):
            self.login_token(credentials[1], peer, done, mechanism)
        else:
            self.check(*credentials, peer, done, mechanism)

    def check(
        self,
        name: str,
        password: bytes,
        peer: Endpoint,
        done: Callable[[User | ProtocolError], None],
        mechanism: str = "PLAIN",
    ) -> None:
        """A name and a password, whatever brought them."""
        self._attempts.admit(
            name, peer.host,
            lambda: self._check(name, password, peer, done, mechanism),
            lambda: self._refuse_unheard(mechanism, peer, done),
        )  # fmt: skip

    def _check(
        self, name: str, password: bytes, peer: Endpoint, done: Callable[[User | ProtocolError], None], mechanism: str
    ) -> None:
        user = self._users.get(name)
        if user is None or user.password is None or not password or not self.may_come_from(name, peer.host):
            # As slow as a wrong password: how long it takes tells nobody which names there are.
            kept = NOTHING
        else:
            kept = user.password
            if self._is_known(name, password):
                self._finish(True, name, user, mechanism, peer, done)
                return
        key = name, self._digest(password), kept is NOTHING
        together = self._checking.get(key)
        if together is not None:
            together.append((mechanism, peer, done))
            return
        if self._checks.crowded(peer.host):
            self._refuse_unheard(mechanism, peer, done)
            return
        self._checking[key] = [(mechanism, peer, done)]
        self._checks.add(key, peer.host)

        def checked(fits: bool | Exception) -> None:
            self._checks.remove(key)
            # It may have got another password meanwhile.
            right = fits is True and user is not None and self._users.get(name) is user and user.password == kept
            if right:
                self._known[name] = key[1]

            def finish() -> None:
                for mechanism, peer, done in self._checking.pop(key):
                    self._finish(right, name, user, mechanism, peer, done)

            if right and kept.algorithm != SCRYPT:
                self._renew(name, kept, password, finish)
            else:
                finish()

        self._runtime.offload(lambda: fits_slowly(kept, password, self._runtime.hash_cost), checked)

    def _renew(self, name: str, old: Hash, password: bytes, done: Callable[[], None]) -> None:
        """A hash that another program made, and that is quick to guess, is replaced now that the password is at hand:
        an ordinary change of the user, which a cluster orders. Before the login is answered, as sessions end with
        the hash that they began with; but it does not wait for that for ever."""
        over = False

        def finish() -> None:
            nonlocal over
            if not over:
                over = True
                patience.cancel()
                done()

        def ready(new: Hash | Exception) -> None:
            if isinstance(new, Exception):
                log.warning("a password could not be hashed anew", user=name, why=repr(new))
                finish()
                return

            def change(user: User) -> None:
                if user.password == old:
                    user.password = new

            def changed(_: bool) -> None:
                user = self._users.get(name)
                if user is not None and user.password == new:
                    self._known[name] = self._digest(password)
                finish()

            self._change(name, change, changed)

        patience = self._runtime.call_later(RENEW_TIMEOUT, finish)
        salt = self._runtime.entropy(SALT_SIZE)
        self._runtime.offload(lambda: hashed(password, salt, self._runtime.hash_cost), ready)

    def login_token(
        self,
        token: bytes,
        peer: Endpoint,
        done: Callable[[User | ProtocolError], None],
        mechanism: str = "Bearer",
    ) -> None:
        """A token says itself whose it is: a name that came with it is ignored, as in RabbitMQ."""
        tokens = self.tokens
        if tokens is None:
            self._refuse_unheard(mechanism, peer, done)
            return
        # Nobody guesses a token; so one that is no good keeps nobody out but itself, and costs its address time.
        attempt = f"token {self._digest(token).hex()}"

        def checked(result: User | BadToken) -> None:
            if isinstance(result, User) and self.may_come_from(result.name, peer.host):
                self._attempts.succeeded(attempt, peer.host)
                stored = self._users.get(result.name)
                if stored is not None:  # as in RabbitMQ, limits are looked up by name, whoever has it
                    result.limits = stored.limits
                done(result)
                return
            if not isinstance(result, BadToken) or result.counts:
                self._attempts.failed(attempt, peer.host)
            why = str(result) if isinstance(result, BadToken) else f"'{result.name}' may not come from there"
            if self._refusals.is_new(peer.host, why, self._runtime.now()):
                log.warning("a token is refused", peer=peer.host, why=why)
            done(_refused(mechanism))

        self._attempts.admit(
            attempt, peer.host,
            lambda: tokens.check(token, checked),
            lambda: self._refuse_unheard(mechanism, peer, done),
        )  # fmt: skip

    def _refuse_unheard(self, mechanism: str, peer: Endpoint, done: Callable[[User | ProtocolError], None]) -> None:
        if self._refusals.is_new(peer.host, "unheard", self._runtime.now()):  # it costs who asks nothing to come again
            log.warning("logins are refused unheard", peer=peer.host)
        done(_refused(mechanism))

    def _finish(
        self,
        right: bool,
        name: str | None,
        user: User | None,
        mechanism: str,
        peer: Endpoint,
        done: Callable[[User | ProtocolError], None],
    ) -> None:
        if right and user is not None:
            self._attempts.succeeded(user.name, peer.host)
            done(user)
            return
        self._attempts.failed(name, peer.host)
        log.warning("a login failed", user=user.name if user else "?", peer=peer.host, mechanism=mechanism)
        done(_refused(mechanism))

    def _is_known(self, name: str, password: bytes) -> bool:
        known = self._known.get(name)
        return known is not None and hmac.compare_digest(known, self._digest(password))

    def _digest(self, password: bytes) -> bytes:
        return hmac.digest(self._secret, password, "sha256")

    def may_come_from(self, name: str, host: str) -> bool:
        """Whether a user of that name, stored or not, may log in from there."""
        user = self._users.get(name)
        if user is not None and not user.allow.allows(host):
            return False
        return name not in self._settings.loopback_users or is_loopback(host)


def _refused(mechanism: str) -> ProtocolError:
    text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
    return ProtocolError(ACCESS_REFUSED, text)


def claimed_name(mechanism: str, response: bytes, certificate: str | None) -> str:
    """Who somebody says to be, whether it is true or not; nothing if that cannot be read."""
    if mechanism == "EXTERNAL":
        return certificate or ""
    found = _plain(response) if mechanism == "PLAIN" else _amqplain(response)
    return "" if found is None else found[0]


def _plain(response: bytes) -> tuple[str, bytes] | None:
    """Whom to act for (ignored), name, password; each after a zero byte but the first."""
    parts = response.split(b"\0")
    if len(parts) != 3:
        return None
    try:
        return parts[1].decode(), parts[2]
    except UnicodeDecodeError:
        return None


def _amqplain(response: bytes) -> tuple[str, bytes] | None:
    """A table without its length."""
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
    except ProtocolError:
        return None
    name, password = table.get("LOGIN"), table.get("PASSWORD")
    if isinstance(name, str) and isinstance(password, str | bytes):
        return name, password.encode() if isinstance(password, str) else password
    return None
