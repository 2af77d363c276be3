"""What an import is going to do, checked; and doing it, in an order in which nothing lacks what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from coterie.addresses import AllowList
from coterie.broker.passwords import Hash
from coterie.broker.policy import Policy
from coterie.broker.specs import Binding, ExchangeSpec, QueueSpec
from coterie.broker.topic_permissions import TopicPermissions
from coterie.broker.users import Permissions
from coterie.broker.wiring import Bind, DeclareExchange, DeclareQueue
from coterie.console import global_parameters
from coterie.console.context import Context
from coterie.errors import CoterieError

_SLICE: Final = 200
"""Objects that are made in one turn of the loop."""
_TOLD: Final = 5
Call = Callable[[Callable[[Any], None]], None]
Change = TypeVar("Change", bound=tuple[Any, ...])


@dataclass(frozen=True, slots=True)
class Account:
    """A user to be."""

    name: str
    password: str | Hash | None
    tags: tuple[str, ...]
    limits: dict[str, int]
    allow: AllowList


@dataclass(slots=True)
class Plan:
    """Without what is there already."""

    vhosts: list[str] = field(default_factory=list)
    users: list[Account] = field(default_factory=list)
    permissions: list[tuple[str, str, Permissions]] = field(default_factory=list)
    """User, vhost, what it may."""
    topics: list[tuple[str, str, str, TopicPermissions]] = field(default_factory=list)
    """User, vhost, exchange, which routing keys."""
    limits: list[tuple[str, str, int]] = field(default_factory=list)
    """Vhost, limit, value."""
    policies: list[tuple[str, Policy]] = field(default_factory=list)
    operator_policies: list[tuple[str, Policy]] = field(default_factory=list)
    global_parameters: list[tuple[str, object]] = field(default_factory=list)
    """Name, value."""
    exchanges: list[tuple[str, ExchangeSpec]] = field(default_factory=list)
    queues: list[tuple[str, str, QueueSpec]] = field(default_factory=list)
    bindings: list[tuple[str, Binding]] = field(default_factory=list)
    unchanged: int = 0
    notes: list[str] = field(default_factory=list)
    """What was ignored."""

    async def apply(self, context: Context) -> dict[str, int]:
        """Gives how many there were of each. Raises CoterieError if something went wrong that could not be foreseen:
        what could be done is done then."""
        counts: dict[str, int] = {}
        wrong: list[str] = []
        for section, calls in self._phases(context):
            results = await _all(context, calls)
            errors = [str(result) for result in results if isinstance(result, Exception)]
            wrong += [f"{section}: {error}" for error in errors]
            if calls:
                counts[section] = counts.get(section, 0) + len(calls) - len(errors)
        if wrong:
            raise CoterieError(
                f"{len(wrong)} of the definitions could not be applied, the others are: {'; '.join(wrong[:_TOLD])}"
            )
        return counts | {"unchanged": self.unchanged}

    def _phases(self, context: Context) -> Iterator[tuple[str, list[Call]]]:
        """Each is made when the one before is done: there are no queues before there is their vhost."""
        users, vhosts = context.users, context.broker.vhosts
        yield "vhosts", [partial(context.broker.add_vhost, name) for name in self.vhosts]
        yield "users", [partial(users.put, user.name, user.password, user.tags) for user in self.users]
        yield "user_addresses", [partial(users.allow_from, user.name, user.allow) for user in self.users if user.allow]
        limits = [(user.name, name, value) for user in self.users for name, value in user.limits.items()]
        for limit in rounds(limits):
            yield "user_limits", [partial(users.limit, *each) for each in limit]
        for permission in rounds(self.permissions):
            yield "permissions", [partial(users.permit, *each) for each in permission]
        for topic in rounds(self.topics):
            yield "topic_permissions", [partial(users.permit_topic, *each) for each in topic]
        yield "policies", [partial(vhosts[vhost].set_policy, policy) for vhost, policy in self.policies]
        operator = self.operator_policies
        yield (
            "operator_policies",
            [partial(vhosts[vhost].set_policy, policy, operator=True) for vhost, policy in operator],
        )
        put = partial(global_parameters.put, context.broker)
        yield "global_parameters", [partial(put, name, value) for name, value in self.global_parameters]
        yield "exchanges", [partial(vhosts[vhost].change, DeclareExchange(spec)) for vhost, spec in self.exchanges]
        queues = [(vhost, DeclareQueue(name, spec, None, chosen=True)) for vhost, name, spec in self.queues]
        yield "queues", [partial(vhosts[vhost].change, declare) for vhost, declare in queues]
        yield "bindings", [partial(vhosts[vhost].change, Bind(binding)) for vhost, binding in self.bindings]
        yield "limits", [partial(vhosts[vhost].set_limit, name, value) for vhost, name, value in self.limits]


def rounds(changes: Sequence[Change]) -> list[list[Change]]:
    """In each round one change of a user, who comes first in it: the next change begins with what it is by then."""
    found: list[list[Change]] = []
    seen: dict[object, int] = {}
    for change in changes:
        number = seen[change[0]] = seen.get(change[0], -1) + 1
        if number == len(found):
            found.append([])
        found[number].append(change)
    return found


async def _all(context: Context, calls: list[Call]) -> list[object]:
    """One sync of the disk serves many calls: they are all made before the first is waited for."""
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[object]] = []
    for count, call in enumerate(calls, 1):
        future: asyncio.Future[object] = loop.create_future()
        futures.append(future)
        try:
            call(partial(_complete, future))
        except CoterieError as error:
            future.set_result(error)
        if count % _SLICE == 0:
            await asyncio.sleep(0)
    if not futures:
        return []
    return await context.patiently(asyncio.gather(*futures))


def _complete(future: asyncio.Future[object], result: object) -> None:
    if not future.done():
        future.set_result(result)
