"""Policies: which one applies, to what, and that it applies at once."""

from __future__ import annotations

import pytest
from broker_rig import Rig, bodies

from coterie.broker.policy import Policy
from coterie.errors import UserError


def set_policy(rig: Rig, name: str, pattern: str, operator: bool = False, **rest: object) -> None:
    definition = {key.replace("_", "-"): value for key, value in rest.items() if key not in ("apply_to", "priority")}
    more = {key: value for key, value in rest.items() if key in ("apply_to", "priority")}
    policy = Policy(name, pattern, definition, **more)  # type: ignore[arg-type]
    rig.ask(lambda done: rig.vhost.set_policy(policy, done, operator))


def clear_policy(rig: Rig, name: str, operator: bool = False) -> None:
    rig.ask(lambda done: rig.vhost.clear_policy(name, done, operator))


def test_a_policy_applies_to_queues_that_exist_and_to_those_to_come() -> None:
    rig = Rig()
    queue = rig.declare("orders.1")
    rig.publish("a", "b", "c", key="orders.1")
    set_policy(rig, "short", "^orders", max_length=2)
    assert bodies(queue) == ["b", "c"]
    assert str(queue.policy) == "short"
    assert rig.declare("orders.2").limits.max_length == 2
    assert rig.declare("other").limits.max_length is None
    clear_policy(rig, "short")
    assert (queue.limits.max_length, queue.policy) == (None, None)


def test_the_highest_priority_applies_alone_and_among_equals_the_first_name() -> None:
    rig = Rig()
    queue = rig.declare()
    set_policy(rig, "a", "", max_length=1, priority=1)
    set_policy(rig, "c", "", max_length=3, message_ttl=5, priority=2)
    set_policy(rig, "b", "", max_length=2, priority=2)
    assert queue.policy == "b"
    assert (queue.limits.max_length, queue.limits.ttl) == (2, None)
    clear_policy(rig, "b")
    assert queue.policy == "c"


def test_a_policy_that_is_changed_gives_way_where_another_comes_first_now() -> None:
    rig = Rig()
    queue = rig.declare("orders")
    set_policy(rig, "a", "", max_length=1, priority=1)
    set_policy(rig, "b", "", max_length=2, priority=2)
    assert queue.policy == "b"
    set_policy(rig, "b", "", max_length=2, priority=0)
    assert queue.policy == "a"
    set_policy(rig, "b", "", max_length=3, priority=3)
    assert (queue.policy, queue.limits.max_length) == ("b", 3)
    set_policy(rig, "b", "^other", max_length=3, priority=3)
    assert (queue.policy, queue.limits.max_length) == ("a", 1)


def test_setting_a_policy_searches_for_no_other_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that searched every name for every pattern would keep all others waiting for long."""
    rig = Rig()
    for number in range(20):
        rig.declare(f"q{number}")
        set_policy(rig, f"p{number}", f"^z{number}", max_length=1, priority=9)
    searched: list[str] = []

    def fits(pattern: str, text: str) -> bool:
        searched.append(pattern)
        return True

    monkeypatch.setattr("coterie.patterns.fits", fits)
    set_policy(rig, "late", "^z", max_length=1, priority=10)
    assert set(searched) == {"^z"}
    clear_policy(rig, "p3")
    assert set(searched) == {"^z"}


def test_of_an_argument_and_a_policy_the_smaller_number_counts_and_the_arguments_word() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 5, "x-message-ttl": 100, "x-dead-letter-exchange": "mine"})
    set_policy(rig, "p", "", max_length=10, message_ttl=50, dead_letter_exchange="theirs", dead_letter_routing_key="k")
    limits = queue.limits
    assert (limits.max_length, limits.ttl, limits.dead_exchange, limits.dead_key) == (5, 50, "mine", "k")


def test_an_operator_can_only_tighten() -> None:
    rig = Rig()
    queue = rig.declare(arguments={"x-max-length": 5})
    set_policy(rig, "theirs", "", max_length=4, message_ttl=1000)
    set_policy(rig, "operators", "", operator=True, max_length=3, message_ttl=5000, expires=60_000)
    limits = queue.limits
    assert (limits.max_length, limits.ttl, limits.expires) == (3, 1000, 60_000)
    assert (queue.policy, queue.operator_policy) == ("theirs", "operators")
    with pytest.raises(UserError, match="no key 'dead-letter-exchange'"):
        set_policy(rig, "more", "", operator=True, dead_letter_exchange="x")


def test_a_policy_may_make_queues_refuse() -> None:
    rig = Rig()
    rig.declare()
    rig.publish("a", "b")
    set_policy(rig, "p", "", max_length=1, overflow="reject-publish")
    assert rig.publish("c")[0].refused


def test_a_policy_of_time_reaches_messages_that_are_there() -> None:
    rig = Rig()
    queue = rig.declare()
    rig.publish("a")
    rig.run(100)
    set_policy(rig, "p", "", message_ttl=1000)
    rig.run(0.9)
    assert bodies(queue) == ["a"]
    rig.run(0.2)
    assert bodies(queue) == []


def test_a_policy_of_unused_queues_counts_from_when_it_is_set() -> None:
    rig = Rig()
    rig.declare()
    rig.run(100)
    set_policy(rig, "p", "", expires=1000)
    rig.run(0.9)
    assert "q" in rig.vhost.queues
    set_policy(rig, "p", "", expires=500)
    rig.run(0.6)
    assert "q" not in rig.vhost.queues


def test_a_dead_letter_exchange_may_come_by_policy() -> None:
    rig = Rig()
    queue, grave = rig.declare(), rig.declare("dead")
    set_policy(rig, "p", "^q$", dead_letter_exchange="", dead_letter_routing_key="dead")
    rig.publish("a")
    rig.consume(queue).reject()
    assert bodies(grave) == ["a"]


def test_an_alternate_exchange_may_come_by_policy_and_an_argument_wins() -> None:
    rig = Rig()
    rig.exchange("x")
    rig.exchange("own", arguments={"alternate-exchange": "amq.direct"})
    queue = rig.declare()
    rig.bind("amq.fanout", "q")
    assert rig.publish("a", exchange="x")[0].unroutable
    set_policy(rig, "p", "", alternate_exchange="amq.fanout", apply_to="exchanges")
    rig.publish("b", exchange="x")
    assert bodies(queue) == ["b"]
    assert rig.vhost.exchange("x").policy == "p"
    assert rig.vhost.exchange("own").alternate == "amq.direct"
    assert queue.policy is None
    clear_policy(rig, "p")
    assert rig.publish("c", exchange="x")[0].unroutable


def test_a_policy_says_what_it_is_for() -> None:
    rig = Rig()
    classic, quorum = rig.declare("a"), rig.declare("b", {"x-queue-type": "quorum"}, durable=True)
    set_policy(rig, "p", "", max_length=1, apply_to="quorum_queues")
    assert (classic.policy, quorum.policy) == (None, "p")
    set_policy(rig, "p", "", max_length=1, apply_to="classic_queues")
    assert (classic.policy, quorum.policy) == ("p", None)
    set_policy(rig, "p", "", max_length=1, apply_to="queues")
    assert (classic.policy, quorum.policy) == ("p", "p")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Policy("", "", {"max-length": 1}), "needs a name"),
        (Policy("p", "(", {"max-length": 1}), "no regular expression"),
        (Policy("p", "a" * 2000, {"max-length": 1}), "1024 bytes"),
        (Policy("p", "", {}), "empty"),
        (Policy("p", "", {"max-lenght": 1}), "no key 'max-lenght'"),
        (Policy("p", "", {"max-length": "1"}), "whole number"),
        (Policy("p", "", {"overflow": "ring"}), "kind of queue"),
        (Policy("p", "", {"max-length": 1}, "everything"), "apply-to"),
        (Policy("p", "", {"max-length": 1}, priority="high"), "priority"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_policy_is_refused_with_a_text_that_helps(policy: Policy, text: str) -> None:
    rig = Rig()
    with pytest.raises(UserError, match=text):
        rig.vhost.set_policy(policy, lambda _: None)
    assert rig.vhost.policies == {}


def test_keys_that_mean_nothing_here_may_stand_in_a_definition() -> None:
    rig = Rig()
    queue = rig.declare()
    set_policy(rig, "p", "", ha_mode="all", max_length=7)
    assert queue.limits.max_length == 7
