"""Definitions: out of one broker and into another, whatever is in them; and totals that never fall."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from coterie.amqp.server import Server
from coterie.broker.broker import Broker
from coterie.broker.message import make_message
from coterie.broker.publish import Publish
from coterie.broker.specs import Binding, ExchangeSpec, QueueSpec
from coterie.broker.storage import NullStore
from coterie.broker.users import Users
from coterie.broker.vhost import Vhost
from coterie.console import definitions
from coterie.console.context import Context
from coterie.console.listing import Shape
from coterie.console.settings import ConsoleSettings
from coterie.errors import UserError
from coterie.runtime.aio import AioRuntime

NESTED: object = []
for _ in range(40):
    NESTED = [NESTED]


def with_brokers(test: Callable[[Context, Context], object]) -> None:
    """Call it with two brokers that are empty yet; what it gives is awaited."""

    async def main() -> None:
        runtimes = [AioRuntime(name) for name in ("one", "two")]
        try:
            contexts = []
            for runtime in runtimes:
                store = NullStore()
                broker, users = Broker(runtime, store=store), Users(runtime, store)
                broker.start(lambda error: None)
                users.restore(())
                server = Server(runtime, broker, users)
                contexts.append(Context(runtime.node, None, runtime, broker, users, server, store, ConsoleSettings()))
            result = test(*contexts)
            if asyncio.iscoroutine(result):
                await result
        finally:
            for context in contexts:
                context.broker.stop(lambda: None)
            for runtime in runtimes:
                await runtime.close()

    asyncio.run(main())


def through_json(shape: Shape) -> Shape:
    found = json.loads(json.dumps(shape))
    assert isinstance(found, dict)
    return found


def test_arguments_of_every_type_make_the_round_trip() -> None:
    arguments = {
        "x-max-length": 5,
        "text": "ü",
        "bytes": b"\xff\x00",
        "decimal": Decimal("1.50"),
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "list": [1, -2.5, None, True, {"!odd": [b"x"]}],
        "!bytes": "not bytes",
    }

    async def test(one: Context, two: Context) -> None:
        vhost = one.broker.vhosts["/"]
        await one.outcome(
            lambda done: vhost.declare_queue("q", QueueSpec(True, arguments=arguments), False, None, done)
        )
        spec = ExchangeSpec("e", "headers", True, arguments=arguments)
        await one.outcome(lambda done: vhost.declare_exchange(spec, False, done))
        binding = Binding("e", "queue", "q", "k", {**arguments, "x-match": "any"})
        await one.outcome(lambda done: vhost.bind(binding, done))
        exported = through_json(definitions.export(one))
        plan = definitions.check(two, exported)
        assert (len(plan.queues), len(plan.exchanges), len(plan.bindings)) == (1, 1, 1)
        await plan.apply(two)
        copy = two.broker.vhosts["/"]
        assert copy.queues["q"].spec.arguments == arguments
        assert copy.exchanges["e"].spec == spec
        assert list(copy.bindings()) == [binding]
        again = definitions.check(two, exported)
        assert await again.apply(two) == {"unchanged": 6}  # the vhost, guest, its permission, and those three
        assert definitions.export(two) == definitions.export(one)

    with_brokers(test)


def test_a_check_touches_nothing() -> None:
    def test(one: Context, two: Context) -> None:
        before = definitions.export(one)
        definitions.check(one, {"vhosts": [{"name": "v"}], "queues": [{"name": "q", "vhost": "v", "durable": True}]})
        assert definitions.export(one) == before

    with_brokers(test)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"queues": {}}, "'queues' must be a list"),
        ({"queues": [{"vhost": "/"}]}, "'name' must be a text"),
        ({"queues": [{"name": "", "vhost": "/"}]}, "needs a name"),
        ({"queues": [{"name": "q"}]}, "'vhost' must be a text"),
        ({"queues": [{"name": "q" * 256, "vhost": "/"}]}, "255 bytes"),
        ({"queues": [{"name": "q", "vhost": "/", "durable": "yes"}]}, "true or false"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": [1]}]}, "must be an object"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"a": {"!decimal": "x"}}}]}, "makes no sense"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"a": 2**70}}]}, "64 bits"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"a": NESTED}}]}, "nested"),
        ({"queues": [{"name": "\ud800", "vhost": "/"}]}, "not Unicode"),
        ({"queues": [{"name": "q", "vhost": "/", "arguments": {"x-queue-type": "stream"}}]}, "x-queue-type"),
        ({"queues": [{"name": "q", "vhost": "/"}, {"name": "q", "vhost": "/", "auto_delete": True}]}, "differently"),
        ({"exchanges": [{"name": "amq.mine", "vhost": "/", "type": "direct"}]}, "reserved"),
        ({"exchanges": [{"name": "", "vhost": "/", "type": "direct"}]}, "reserved"),
        ({"exchanges": [{"name": "amq.topic", "vhost": "/", "type": "direct"}]}, "inequivalent arg 'type'"),
        ({"users": [{"name": "u", "tags": 5}]}, "'tags'"),
        ({"users": [{"name": "u", "password": ""}]}, "empty"),
        ({"users": [{"name": "u", "limits": {"max-x": 1}}]}, "max-x"),
        ({"users": [{"name": "u"}, {"name": "u"}]}, "twice"),
        ({"users": [{"name": "u", "password_hash": "not base64"}]}, "base64"),
        ({"vhosts": [{"name": ""}]}, "needs a name"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {}}]}, "empty"),
        ({"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"x": 1}}]}, "no key 'x'"),
        ({"bindings": [{"vhost": "/", "source": "no", "destination": "no"}]}, "no exchange 'no'"),
        ({"bindings": [{"vhost": "/", "source": "amq.topic", "destination": "x", "destination_type": "y"}]}, "'y'"),
        (
            {
                "queues": [{"name": "q", "vhost": "/"}],
                "bindings": [
                    {"vhost": "/", "source": "amq.headers", "destination": "q", "arguments": {"x-match": "most"}}
                ],
            },
            "x-match",
        ),
    ],
)
def test_a_problem_is_named_with_its_place(document: Shape, problem: str) -> None:
    def test(one: Context, two: Context) -> None:
        with pytest.raises(UserError) as caught:
            definitions.check(one, document)
        text = str(caught.value)
        assert text.startswith("nothing was imported: ")
        assert problem in text
        assert next(iter(document)) in text or "bindings" in text

    with_brokers(test)


def test_very_many_problems_are_counted_and_not_all_told() -> None:
    def test(one: Context, two: Context) -> None:
        with pytest.raises(UserError, match=r"and 80 more$"):
            definitions.check(one, {"queues": [{"name": "", "vhost": "/"}] * 100})

    with_brokers(test)


def test_definitions_of_one_vhost_stay_in_it() -> None:
    def test(one: Context, two: Context) -> None:
        plan = definitions.check(one, {"queues": [{"name": "q"}], "users": [{"name": "u"}]}, "/")
        assert [(vhost, name) for vhost, name, _ in plan.queues] == [("/", "q")]
        assert plan.users == []
        assert plan.notes == ["users: ignored in definitions of one vhost (1 of them)"]
        with pytest.raises(UserError, match="definitions of '/'"):
            definitions.check(one, {"queues": [{"name": "q", "vhost": "other"}]}, "/")

    with_brokers(test)


async def fill(context: Context, vhost: Vhost) -> None:
    """A queue with three messages."""
    await context.outcome(lambda done: vhost.declare_queue("q", QueueSpec(), False, None, done))
    messages = [Publish(make_message("", "q", b"x")) for _ in range(3)]
    await context.outcome(lambda done: vhost.publish(messages, lambda: done(None)))


def test_the_totals_of_queues_keep_what_deleted_queues_and_vhosts_have_counted() -> None:
    async def test(one: Context, two: Context) -> None:
        broker = one.broker
        await one.outcome(lambda done: broker.add_vhost("v", done))
        for name in ("/", "v"):
            await fill(one, broker.vhosts[name])
        assert (await one.totals()).enqueued == 6
        await one.outcome(lambda done: broker.vhosts["/"].delete_queue("q", False, False, done))
        assert (await one.totals()).enqueued == 6
        await one.outcome(lambda done: broker.delete_vhost("v", done))
        assert (await one.totals()).enqueued == 6
        assert (await one.overall())[0] == 6

    with_brokers(test)
