"""The check of definitions before they are imported: every problem is found, nothing is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from coterie.addresses import allow_list
from coterie.amqp.rates import RATE_MAX, RATES
from coterie.broker import validation
from coterie.broker.broker import Broker
from coterie.broker.exchange import binding_id, make_exchange
from coterie.broker.passwords import given
from coterie.broker.policy import Policy
from coterie.broker.specs import EXCHANGE_KINDS, Binding, ExchangeSpec, QueueSpec
from coterie.broker.switchboard import PREDECLARED
from coterie.broker.topic_permissions import TopicPermissions
from coterie.broker.users import Permissions, User, Users
from coterie.broker.vhost import Vhost
from coterie.broker.wiring import LIMITS, RESERVED, DeclareExchange, DeclareQueue
from coterie.console import global_parameters
from coterie.console.import_plan import Account, Plan
from coterie.console.listing import Shape
from coterie.console.tables import checked_table, checked_text
from coterie.errors import ProtocolError, UserError

PROBLEMS_TOLD: Final = 20
PASSWORDS_MAX: Final = 200
"""Passwords that are not hashed yet: each takes a while."""
NAME_MAX: Final = validation.NAME_MAX
USER_LIMITS: Final = ("max-connections", "max-channels", *RATES)
_HEAD: Final = frozenset(
    {"rabbit_version", "rabbitmq_version", "product_name", "product_version", "rabbitmq_definition_format", "metadata",
     "original_cluster_name", "original_vhost_name", "explanation", "description", "default_queue_type"}
)  # fmt: skip
"""What a document says of itself."""
KEYS: Final[dict[str, frozenset[str]]] = {
    "users": frozenset({"name", "password", "password_hash", "hashing_algorithm", "tags", "limits", "allow"}),
    "vhosts": frozenset({"name", "limits", "metadata", "description", "tags", "default_queue_type"}),
    "permissions": frozenset({"user", "vhost", "configure", "write", "read"}),
    "topic_permissions": frozenset({"user", "vhost", "exchange", "write", "read"}),
    "parameters": frozenset({"vhost", "component", "name", "value"}),
    "policies": frozenset({"vhost", "name", "pattern", "apply-to", "definition", "priority"}),
    "global_parameters": frozenset({"name", "value"}),
    "queues": frozenset({"name", "vhost", "durable", "auto_delete", "arguments", "type"}),
    "exchanges": frozenset({"name", "vhost", "type", "durable", "auto_delete", "internal", "arguments"}),
    "bindings": frozenset({
        "source", "vhost", "destination", "destination_type", "routing_key", "arguments", "properties_key"
    }),
}  # fmt: skip
"""Sections in the order in which they are looked at, and the keys of their objects."""
OF_VHOSTS: Final = frozenset({"parameters", "policies", "queues", "exchanges", "bindings"})


class Item:
    """One object of a section. What is missing or of the wrong type raises UserError."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def text(self, key: str, default: str | None = None, most: int = 0) -> str:
        value = checked_text(key, self.shape.get(key, default))
        if most and len(value.encode("utf-8", "surrogateescape")) > most:
            raise UserError(f"'{key}' may have {most} bytes")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.shape.get(key, default)
        if not isinstance(value, bool):
            raise UserError(f"'{key}' must be true or false")
        return value

    def number(self, key: str, default: int) -> int:
        value = self.shape.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"'{key}' must be a whole number")
        return value

    def table(self, key: str) -> Shape:
        value = self.shape.get(key)
        if value is None or value == []:
            return {}
        if not isinstance(value, dict):
            raise UserError(f"'{key}' must be an object")
        return value

    def arguments(self) -> Shape:
        return checked_table("arguments", self.shape.get("arguments"))


class Checker:
    """Of one document."""

    def __init__(self, broker: Broker, users: Users, only: str | None, algorithm_of: Callable[[Shape], str]) -> None:
        self._broker = broker
        self._users = users
        self._only = only
        """The vhost that the document is about; None: it names them."""
        self._algorithm_of = algorithm_of
        self._plan = Plan()
        self._problems: list[str] = []
        self._names: dict[str, dict[str, None]] = {"vhosts": {}, "users": {}}
        """That there will be."""
        self._made: dict[tuple[str, str, str], QueueSpec | ExchangeSpec] = {}
        """Kind, vhost and name of what the document declares."""
        self._bound: dict[object, None] = {}
        self._passwords = 0

    def check(self, document: Shape) -> Plan:
        looks: dict[str, Callable[[Item], None]] = {
            "vhosts": self._vhost, "users": self._user, "permissions": self._permission,
            "topic_permissions": self._topics, "policies": self._policy,
            "parameters": self._parameter, "global_parameters": self._global_parameter,
            "exchanges": self._exchange, "queues": self._queue,
            "bindings": self._binding,
        }  # fmt: skip
        self._look_at_sections(document)
        for section, look in looks.items():
            if self._only is not None and section not in OF_VHOSTS:
                continue
            for place, item in self._items(document, section):
                try:
                    look(item)
                except (UserError, ProtocolError) as error:
                    self._problems.append(f"{place}: {error}")
        self._count()
        if self._problems:
            told = "; ".join(self._problems[:PROBLEMS_TOLD])
            more = len(self._problems) - PROBLEMS_TOLD
            raise UserError(f"nothing was imported: {told}" + (f"; and {more} more" if more > 0 else ""))
        return self._plan

    # The document.

    def _look_at_sections(self, document: Shape) -> None:
        notes = self._plan.notes
        for section, value in document.items():
            if section in _HEAD:
                continue
            if section not in KEYS:
                notes.append(f"'{section}': not known, ignored")
            elif self._only is not None and section not in OF_VHOSTS and value:
                notes.append(f"{section}: ignored in definitions of one vhost ({_size(value)})")

    def _items(self, document: Shape, section: str) -> Iterator[tuple[str, Item]]:
        shapes = document.get(section, [])
        if not isinstance(shapes, list):
            self._problems.append(f"'{section}' must be a list")
            return
        strange: dict[str, None] = {}
        for index, shape in enumerate(shapes):
            if not isinstance(shape, dict):
                self._problems.append(f"{section}[{index}] must be an object")
                continue
            strange.update(dict.fromkeys(key for key in shape if key not in KEYS[section]))
            name = shape.get("name", shape.get("user", shape.get("source", "")))
            yield f"{section}[{index}] '{name}'", Item(shape)
        if strange:
            self._plan.notes.append(f"{section}: keys that are not known are ignored: {', '.join(sorted(strange))}")

    def _vhost_of(self, item: Item) -> tuple[str, Vhost | None]:
        """The one that an object is in, and what there is of it already."""
        name = item.text("vhost", self._only)
        if self._only is not None and name != self._only:
            raise UserError(f"it is in vhost '{name}', and these are definitions of '{self._only}'")
        if name not in self._broker.vhosts and name not in self._names["vhosts"]:
            raise UserError(f"there is no vhost '{name}', here or in the document")
        return name, self._broker.vhosts.get(name)

    def _new(self, there: bool) -> bool:
        if there:
            self._plan.unchanged += 1
        return not there

    # Its objects.

    def _vhost(self, item: Item) -> None:
        name = item.text("name", most=NAME_MAX)
        if not name:
            raise UserError("a vhost needs a name")
        if name not in self._names["vhosts"]:
            self._names["vhosts"][name] = None
            if self._new(name in self._broker.vhosts):
                self._plan.vhosts.append(name)

    def _user(self, item: Item) -> None:
        name = item.text("name", most=NAME_MAX)
        if not name:
            raise UserError("a user needs a name")
        if name in self._names["users"]:
            raise UserError("it is there twice")
        self._names["users"][name] = None
        tags = item.shape.get("tags", [])
        words = [word.strip() for word in tags.split(",")] if isinstance(tags, str) else tags
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise UserError("'tags' must be a list of texts")
        limits = {key: Item(item.table("limits")).number(key, 0) for key in item.table("limits")}
        for limit in limits:
            if limit not in USER_LIMITS:
                raise UserError(f"there is no limit '{limit}' (there are: {', '.join(USER_LIMITS)})")
            if limit in RATES and not 0 < limits[limit] <= RATE_MAX:
                raise UserError(f"'{limit}' must be from 1 to {RATE_MAX}")
        networks = item.shape.get("allow", [])
        if not isinstance(networks, list):
            raise UserError("'allow' must be a list of networks")
        allow = allow_list(networks, "'allow'")
        text = item.text("password_hash", "")
        password = given(self._algorithm_of(item.shape), text) if text else None
        if "password" in item.shape:
            self._passwords += 1
            if self._passwords > PASSWORDS_MAX:
                raise UserError(f"more than {PASSWORDS_MAX} passwords are not hashed: hash them, or import in parts")
            plain = item.text("password")
            if not plain:
                raise UserError("'password' must not be empty")
            self._plan.users.append(Account(name, plain, tuple(filter(None, words)), limits, allow))
            return
        wanted = tuple(filter(None, words))
        there = self._users.get(name)
        same = there is not None and (there.password, there.tags, there.allow) == (password, wanted, allow)
        if self._new(same and there is not None and limits.items() <= there.limits.items()):
            self._plan.users.append(Account(name, password, wanted, limits, allow))

    def _user_of(self, item: Item) -> tuple[str, User | None]:
        user = item.text("user")
        there = self._users.get(user)
        if there is None and user not in self._names["users"]:
            raise UserError(f"there is no user '{user}', here or in the document")
        return user, there

    def _topics(self, item: Item) -> None:
        vhost, _ = self._vhost_of(item)
        user, there = self._user_of(item)
        exchange, granted = item.text("exchange"), TopicPermissions(item.text("write"), item.text("read"))
        granted.check()
        if self._new(there is not None and there.topics.get(vhost, {}).get(exchange) == granted):
            self._plan.topics.append((user, vhost, exchange, granted))

    def _permission(self, item: Item) -> None:
        vhost, _ = self._vhost_of(item)
        user, there = self._user_of(item)
        granted = Permissions(item.text("configure"), item.text("write"), item.text("read"))
        granted.check()
        if self._new(there is not None and there.permissions.get(vhost) == granted):
            self._plan.permissions.append((user, vhost, granted))

    def _policy(self, item: Item) -> None:
        vhost, there = self._vhost_of(item)
        policy = _policy_of(item.text("name"), item)
        policy.check()
        if self._new(there is not None and there.policies.get(policy.name) == policy):
            self._plan.policies.append((vhost, policy))

    def _parameter(self, item: Item) -> None:
        component = item.text("component")
        if component == "operator_policy":
            vhost, there = self._vhost_of(item)
            policy = _policy_of(item.text("name"), Item(item.table("value")))
            policy.check(operator=True)
            if self._new(there is not None and there.operator_policies.get(policy.name) == policy):
                self._plan.operator_policies.append((vhost, policy))
        elif component == "vhost-limits":
            vhost, there = self._vhost_of(item)
            values = Item(item.table("value"))
            for limit in values.shape:
                if limit not in LIMITS:
                    raise UserError(f"a vhost has no limit '{limit}' (there are: {', '.join(LIMITS)})")
                value = values.number(limit, -1)
                if value >= 0 and self._new(there is not None and there.limits.get(limit) == value):
                    self._plan.limits.append((vhost, limit, value))
        else:
            self._plan.notes.append(f"parameters: component '{component}' is not known, ignored")

    def _global_parameter(self, item: Item) -> None:
        name, value = global_parameters.check(item.text("name"), item.shape.get("value"))
        there = global_parameters.is_there(self._broker, name)
        if self._new(there and global_parameters.value_of(self._broker, name) == value):
            self._plan.global_parameters.append((name, value))

    def _exchange(self, item: Item) -> None:
        vhost, there = self._vhost_of(item)
        name = item.text("name", most=NAME_MAX)
        spec = ExchangeSpec(
            name, item.text("type", "direct"), item.flag("durable", True), item.flag("auto_delete"),
            item.flag("internal"), item.arguments(),
        )  # fmt: skip
        existing = there is not None and name in there.exchanges
        if there is not None and existing:
            DeclareExchange(spec).apply(there)  # it exists, so that this only compares
        else:
            predeclared = next((each for each in PREDECLARED if each.name == name), None)
            if predeclared is not None:
                existing = True
            elif not name or name.startswith(RESERVED):
                raise UserError(f"the name is reserved: nothing is called '{RESERVED}...' by others than the broker")
            if spec.kind not in EXCHANGE_KINDS:
                raise UserError(f"unknown exchange type '{spec.kind}' (there are: {', '.join(EXCHANGE_KINDS)})")
            spec.check("it")
        if self._declared("exchange", vhost, name, spec) and self._new(existing):
            self._plan.exchanges.append((vhost, spec))

    def _queue(self, item: Item) -> None:
        vhost, there = self._vhost_of(item)
        name = item.text("name", most=NAME_MAX)
        if not name:
            raise UserError("a queue needs a name")
        spec = QueueSpec(item.flag("durable", True), item.flag("auto_delete"), False, item.arguments())
        existing = there is not None and name in there.queues
        if there is not None and existing:
            DeclareQueue(name, spec, None, chosen=True).apply(there)
        else:
            spec.check("it")
        if self._declared("queue", vhost, name, spec) and self._new(existing):
            self._plan.queues.append((vhost, name, spec))

    def _declared(self, kind: str, vhost: str, name: str, spec: QueueSpec | ExchangeSpec) -> bool:
        """False: the document has it already."""
        before = self._made.setdefault((kind, vhost, name), spec)
        if before is not spec and before != spec:
            raise UserError("it is there twice, and differently")
        return before is spec

    def _binding(self, item: Item) -> None:
        vhost, there = self._vhost_of(item)
        kind = item.text("destination_type", "queue")
        if kind not in ("queue", "exchange"):
            raise UserError(f"'destination_type' must be queue or exchange, not {kind!r}")
        binding = Binding(
            item.text("source"), "queue" if kind == "queue" else "exchange", item.text("destination"),
            item.text("routing_key", "", NAME_MAX), item.arguments(),
        )  # fmt: skip
        if not binding.source:
            return  # of the default exchange: it is there by itself
        for what, name in (("exchange", binding.source), (kind, binding.destination)):
            if not self._will_be(what, vhost, there, name):
                raise UserError(f"there is no {what} '{name}' in vhost '{vhost}', here or in the document")
        binding.check()
        self._exchange_like(vhost, there, binding.source, binding)
        source = there.exchanges.get(binding.source) if there is not None else None
        identity = binding_id(binding)
        key = vhost, binding.source, identity
        if key not in self._bound:
            self._bound[key] = None
            if self._new(source is not None and identity in source.bindings):
                self._plan.bindings.append((vhost, binding))

    def _will_be(self, what: str, vhost: str, there: Vhost | None, name: str) -> bool:
        if (what, vhost, name) in self._made:
            return True
        if there is not None:
            return name in (there.queues if what == "queue" else there.exchanges)
        return what == "exchange" and any(each.name == name for each in PREDECLARED)

    def _exchange_like(self, vhost: str, there: Vhost | None, name: str, binding: Binding) -> None:
        """Whether that exchange can have the binding. Raises ProtocolError."""
        made = self._made.get(("exchange", vhost, name))
        if there is not None and name in there.exchanges:
            there.exchanges[name].check(binding)
        elif isinstance(made, ExchangeSpec):
            make_exchange(made).check(binding)

    def _count(self) -> None:
        """Limits of how many there may be."""
        if len(self._broker.vhosts) + len(self._plan.vhosts) > self._broker.settings.vhosts_max:
            self._problems.append("vhosts: there would be too many (vhosts_max)")
        new: dict[str, int] = {}
        for vhost, _, _ in self._plan.queues:
            new[vhost] = new.get(vhost, 0) + 1
        for name, count in new.items():
            vhost_there = self._broker.vhosts.get(name)
            most = self._broker.settings.queues_max
            if vhost_there is not None:
                most = min(most, vhost_there.limits.get("max-queues", most))
                count += len(vhost_there.queues)
            if count > most:
                self._problems.append(f"queues: vhost '{name}' would have {count}, its limit is {most}")


def _policy_of(name: str, item: Item) -> Policy:
    return Policy(
        name, item.text("pattern"), item.table("definition"), item.text("apply-to", "all"), item.number("priority", 0)
    )  # fmt: skip


def _size(value: object) -> str:
    return f"{len(value)} of them" if isinstance(value, list | dict) else "one"
