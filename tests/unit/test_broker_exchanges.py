"""Where a message goes: every kind of exchange, and exchanges behind exchanges."""

from __future__ import annotations

import random
import re

import pytest
from broker_rig import Rig, bodies, message
from hypothesis import given
from hypothesis import strategies as st

from coterie.amqp.wire.tables import Table
from coterie.broker.message import Message
from coterie.broker.publish import Publish
from coterie.broker.settings import BrokerSettings
from coterie.broker.topic import TooManySteps, TopicTrie
from coterie.errors import ProtocolError


def reached(rig: Rig, *args: str, exchange: str = "x", key: str = "", **properties: object) -> list[str]:
    """The queues that one message comes to."""
    (publish,) = rig.publish("m", exchange=exchange, key=key, **properties)
    names = [name for name, queue in rig.vhost.queues.items() if queue.ready]
    for name in names:
        assert rig.purge(name) == 1, "once"
    assert publish.unroutable == (not names)
    return names


def rig_with(kind: str, *queues: str) -> Rig:
    rig = Rig()
    rig.exchange("x", kind)
    for name in queues:
        rig.declare(name)
    return rig


def test_the_default_exchange_knows_queues_by_name() -> None:
    rig = rig_with("direct", "q", "r")
    assert reached(rig, exchange="", key="r") == ["r"]
    assert reached(rig, exchange="", key="nobody") == []
    rig.declare("nobody")
    assert reached(rig, exchange="", key="nobody") == ["nobody"]
    rig.delete("nobody")
    assert reached(rig, exchange="", key="nobody") == []


def test_a_direct_exchange_goes_by_the_key() -> None:
    rig = rig_with("direct", "a", "b")
    rig.bind("x", "a", "red")
    rig.bind("x", "b", "red")
    rig.bind("x", "b", "blue")
    assert reached(rig, key="red") == ["a", "b"]
    assert reached(rig, key="blue") == ["b"]
    assert reached(rig, key="green") == []
    rig.unbind("x", "b", "red")
    assert reached(rig, key="red") == ["a"]


def test_a_fanout_exchange_goes_everywhere_once() -> None:
    rig = rig_with("fanout", "a", "b")
    rig.bind("x", "a", "1")
    rig.bind("x", "a", "2")
    rig.bind("x", "b")
    assert reached(rig, key="whatever") == ["a", "b"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "b", ""]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c"]),
        ("*", ["a", "*", "#"], ["", "a.b"]),
        ("#", ["", "a", "a.b.c", "#", "."], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "", "b.a"]),
        ("#.z", ["z", "a.z", "a.b.z", "z.z"], ["a", "z.a", ""]),
        ("a.#.z", ["a.z", "a.b.z", "a.b.c.z"], ["a", "z", "a.z.b"]),
        ("#.*", ["a", "a.b"], [""]),
        ("#.#", ["", "a", "a.b"], []),
        ("*.#.*", ["a.b", "a.b.c"], ["a", ""]),
        ("", [""], ["a"]),
        ("a..b", ["a..b"], ["a.b", "a.x.b"]),
    ],
)
def test_a_topic_exchange_goes_by_words(pattern: str, matching: list[str], others: list[str]) -> None:
    rig = rig_with("topic", "q")
    rig.bind("x", "q", pattern)
    assert [key for key in matching if not reached(rig, key=key)] == []
    assert [key for key in others if reached(rig, key=key)] == []
    rig.unbind("x", "q", pattern)
    assert [key for key in matching if reached(rig, key=key)] == []


WORDS = st.lists(st.sampled_from(["a", "b", "", "long"]), max_size=5).map(".".join)
PATTERNS = st.lists(st.sampled_from(["a", "b", "", "*", "#", "long"]), max_size=5).map(".".join)


def obviously_matches(pattern: str, key: str) -> bool:
    """By definition, word by word."""

    def match(wanted: list[str], words: list[str]) -> bool:
        if not wanted:
            return not words
        if wanted[0] == "#":
            return any(match(wanted[1:], words[skip:]) for skip in range(len(words) + 1))
        return bool(words) and wanted[0] in ("*", words[0]) and match(wanted[1:], words[1:])

    return match(pattern.split(".") if pattern else [], key.split(".") if key else [])


@given(st.lists(PATTERNS, max_size=8), st.lists(WORDS, min_size=1, max_size=5), st.data())
def test_the_trie_finds_what_the_definition_says_also_after_removals(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[int, int] = TopicTrie()
    live = dict(enumerate(patterns))
    for number, pattern in live.items():
        trie.add(pattern, number, number)
    for number in data.draw(st.lists(st.sampled_from(sorted(live)), unique=True)) if live else []:
        trie.remove(live.pop(number), number)
    for key in keys:
        expected = [number for number, pattern in live.items() if obviously_matches(pattern, key)]
        assert sorted(trie.match(key, 1000)[0]) == expected
    for number, pattern in live.items():
        trie.remove(pattern, number)
    assert not trie._root.children


def test_many_hashes_cost_no_more_than_their_number() -> None:
    trie: TopicTrie[int, int] = TopicTrie()
    trie.add(".".join(["#", "a"] * 30), 1, 1)
    assert trie.match(".".join(["a"] * 29 + ["b"] * 30), 4000)[0] == []
    found, steps = trie.match(".".join(["a"] * 127), 8000)
    assert found == [1]
    assert steps < 128 * 61


def test_a_key_that_takes_too_many_steps_through_many_long_patterns_is_refused() -> None:
    """Each pattern alone costs little; together they would keep a broker for seconds with each message."""
    trie: TopicTrie[int, int] = TopicTrie()
    rng = random.Random(1)
    for number in range(300):
        trie.add("#." + ".".join(rng.choice("a*") for _ in range(115)), number, number)
    assert trie.match("a.b.c", 100_000)[0] == []
    with pytest.raises(TooManySteps, match="takes more than 100,000 steps"):
        trie.match(".".join("a" * 127), 100_000)


HEADERS: dict[str, tuple[Table, list[Table], list[Table]]] = {
    "all": (
        {"x-match": "all", "a": 1, "b": "two"},
        [{"a": 1, "b": "two"}, {"a": 1, "b": "two", "c": 3}],
        [{"a": 1}, {"a": "1", "b": "two"}, {"a": True, "b": "two"}, {"a": 1.0, "b": "two"}, {}],
    ),
    "all by default": ({"a": 1, "b": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    "any": ({"x-match": "any", "a": 1, "b": 2}, [{"a": 1}, {"b": 2, "a": 9}], [{"a": 2}, {}]),
    "nothing wanted of all": ({"x-match": "all"}, [{}, {"a": 1}], []),
    "nothing wanted of any": ({"x-match": "any"}, [], [{}, {"a": 1}]),
    "presence": ({"a": None}, [{"a": 1}, {"a": "x"}], [{"b": 1}]),
    "x- does not count": ({"x-match": "all", "x-a": 1, "b": 2}, [{"b": 2}, {"x-a": 5, "b": 2}], [{"x-a": 1}]),
    "x- does not count for any": ({"x-match": "any", "x-a": 1, "b": 2}, [{"b": 2}], [{"x-a": 1}]),
    "all with x": ({"x-match": "all-with-x", "x-a": 1, "b": 2}, [{"x-a": 1, "b": 2}], [{"b": 2}, {"x-a": 1}]),
    "any with x": ({"x-match": "any-with-x", "x-a": 1, "b": 2}, [{"x-a": 1}, {"b": 2}], [{"x-a": 2}]),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_headers_exchange_goes_by_headers(case: str) -> None:
    arguments, matching, others = HEADERS[case]
    rig = rig_with("headers", "q")
    rig.bind("x", "q", "ignored", arguments)
    assert [headers for headers in matching if not reached(rig, headers=headers)] == []
    assert [headers for headers in others if reached(rig, headers=headers)] == []
    assert bool(reached(rig, key="no headers at all")) == ({} in matching)


@pytest.mark.parametrize("match", ["some", 5, None, True])
def test_a_headers_binding_must_say_how_it_matches(match: object) -> None:
    rig = rig_with("headers", "q")
    with pytest.raises(ProtocolError, match="x-match") as caught:
        rig.bind("x", "q", "", {"x-match": match})  # type: ignore[dict-item]
    assert caught.value.reply_code == 406


def test_exchanges_lead_to_exchanges_and_each_queue_gets_a_message_once() -> None:
    rig = rig_with("fanout", "a", "b")
    rig.exchange("y", "topic")
    rig.bind("x", "y", "", kind="exchange")
    rig.bind("x", "a")
    rig.bind("y", "a", "red.*")
    rig.bind("y", "b", "red.*")
    assert reached(rig, key="red.dark") == ["a", "b"]
    assert reached(rig, key="blue") == ["a"]


def test_exchanges_bound_in_a_circle_do_no_harm() -> None:
    rig = rig_with("fanout", "a")
    rig.exchange("y", "fanout")
    rig.bind("x", "y", kind="exchange")
    rig.bind("y", "x", kind="exchange")
    rig.bind("x", "x", kind="exchange")
    rig.bind("y", "a")
    assert reached(rig) == ["a"]


def test_what_no_binding_takes_goes_to_the_alternate_exchange() -> None:
    rig = Rig()
    rig.exchange("second", "fanout")
    rig.exchange("first", "direct", arguments={"alternate-exchange": "second"})
    rig.exchange("x", "direct", arguments={"alternate-exchange": "first"})
    rig.declare("taken")
    rig.declare("rest")
    rig.bind("x", "taken", "k")
    rig.bind("second", "rest")
    assert reached(rig, key="k") == ["taken"]
    assert reached(rig, key="other") == ["rest"]


def test_alternate_exchanges_in_a_circle_or_missing_are_no_route() -> None:
    rig = Rig()
    rig.exchange("y", arguments={"alternate-exchange": "x"})
    rig.exchange("x", arguments={"alternate-exchange": "y"})
    rig.exchange("z", arguments={"alternate-exchange": "missing"})
    assert reached(rig, key="k") == []
    assert reached(rig, exchange="z", key="k") == []


def test_an_alternate_default_exchange_sees_new_queues() -> None:
    rig = Rig()
    rig.exchange("x", arguments={"alternate-exchange": ""})
    assert reached(rig, key="later") == []
    rig.declare("later")
    assert reached(rig, key="later") == ["later"]


def test_further_keys_in_the_headers_route_too_and_hidden_ones_are_not_seen() -> None:
    rig = rig_with("direct", "a", "b", "c")
    for name in "abc":
        rig.bind("x", name, name)
    properties: dict[str, object] = {"headers": {"CC": ["b"], "BCC": ["c", "a"], "n": 1}}
    rig.publish("m", exchange="x", key="a", **properties)
    assert [name for name in "abc" if rig.vhost.queues[name].ready] == ["a", "b", "c"]
    entry = rig.get("c")
    assert entry is not None
    assert entry.message is not None
    assert entry.message.properties().headers == {"CC": ["b"], "n": 1}
    for name in "abc":
        rig.purge(name)
    assert reached(rig, key="a") == ["a"], "and the route by the key alone is as it was"


@pytest.mark.parametrize("copies", ["b", 5, ["b", 7], None])
def test_further_keys_that_are_none_do_no_harm(copies: object) -> None:
    rig = rig_with("direct", "a")
    rig.bind("x", "a", "a")
    assert reached(rig, key="a", headers={"CC": copies}) == ["a"]


def test_routes_are_remembered_up_to_a_limit_and_stay_right() -> None:
    rig = Rig(BrokerSettings(route_cache_max=10, memory_high=0))
    rig.exchange("x", "topic")
    rig.declare("q")
    rig.bind("x", "q", "even.#")
    for number in range(100):
        expected = [] if number % 2 else ["q"]
        assert reached(rig, key=f"{'odd' if number % 2 else 'even'}.{number}") == expected
    assert len(rig.vhost.router.known) <= 10


def test_a_batch_over_many_routes_keeps_the_order_in_each_queue() -> None:
    rig = rig_with("direct", "a", "b")
    rig.bind("x", "a", "a")
    for name in "ab":
        rig.bind("x", name, "both")
    keys = ["a", "both", "nobody", "a", "both", "a"]
    batch = [Publish(message(str(number), "x", key)) for number, key in enumerate(keys)]
    rig.vhost.publish(batch, lambda: None)
    assert bodies(rig.vhost.queues["a"]) == ["0", "1", "3", "4", "5"]
    assert bodies(rig.vhost.queues["b"]) == ["1", "4"]
    assert [publish.unroutable for publish in batch] == [False, False, True, False, False, False]


class Replies:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def enqueue(self, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]


def test_a_pseudo_queue_is_published_to_by_its_name() -> None:
    rig = Rig()
    replies = Replies()
    rig.vhost.pseudo["amq.rabbitmq.reply-to.x1"] = replies  # type: ignore[assignment]
    assert not rig.publish("answer", key="amq.rabbitmq.reply-to.x1")[0].unroutable
    assert replies.bodies == [b"answer"]
    del rig.vhost.pseudo["amq.rabbitmq.reply-to.x1"]
    assert rig.publish("answer", key="amq.rabbitmq.reply-to.x1")[0].unroutable


def test_nobody_publishes_to_what_is_missing_or_internal() -> None:
    rig = Rig()
    rig.exchange("inside", internal=True)
    rig.vhost.check_publish("", None)
    rig.vhost.check_publish("amq.topic", None)
    for name, code in (("missing", 404), ("inside", 403)):
        with pytest.raises(ProtocolError, match=re.escape(f"exchange '{name}' in vhost '/'")) as caught:
            rig.vhost.check_publish(name, None)
        assert caught.value.reply_code == code
