"""Dead letters: which messages become one, what they tell, and when they are dropped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from broker_rig import Rig, bodies, headers
from queue_view import Seen, in_order, seen

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.tables import Table
from coterie.broker import graveyard
from coterie.broker.delivery import count_of
from coterie.broker.graveyard import DYING_MAX
from coterie.broker.message import route_bytes
from coterie.broker.observer import Arrived, QueueObserver, Reason
from coterie.broker.queue import Queue
from coterie.broker.ranges import Range
from coterie.broker.storage import NullStore
from coterie.errors import ProtocolError


def rig_with_grave(arguments: Table | None = None) -> tuple[Rig, Queue, Queue]:
    """A queue `q` whose dead go to the queue `dead`."""
    rig = Rig()
    rig.exchange("dlx", "fanout")
    grave = rig.declare("dead")
    rig.bind("dlx", "dead")
    queue = rig.declare("q", {"x-dead-letter-exchange": "dlx", **(arguments or {})})
    return rig, queue, grave


def only(queue: Queue) -> Seen:
    (entry,) = in_order(queue)
    return entry


def deaths(entry: Seen) -> list[Table]:
    found = headers(entry)["x-death"]
    assert isinstance(found, list)
    return found


def test_a_rejected_message_tells_where_when_and_why_it_died() -> None:
    rig, queue, grave = rig_with_grave()
    rig.publish("a", headers={"own": 1}, delivery_mode=2)
    rig.consume(queue).reject()
    letter = only(grave)
    time = datetime.fromtimestamp(int(rig.runtime.wall()), UTC)
    assert deaths(letter) == [
        {"count": 1, "reason": "rejected", "queue": "q", "time": time, "exchange": "", "routing-keys": ["q"]}
    ]
    told = {name: value for name, value in headers(letter).items() if name != "x-death"}
    assert told == {
        "own": 1,
        "x-first-death-exchange": "", "x-first-death-queue": "q", "x-first-death-reason": "rejected",
        "x-last-death-exchange": "", "x-last-death-queue": "q", "x-last-death-reason": "rejected",
    }  # fmt: skip
    assert letter.message is not None
    assert (letter.message.exchange, letter.message.key, letter.message.persistent) == ("dlx", "q", True)
    assert queue.counters.dead_lettered == 1


def test_an_expired_message_is_a_dead_letter_that_does_not_expire_again() -> None:
    rig, _, grave = rig_with_grave()
    rig.publish("a", expiration="100")
    rig.run(0.2)
    letter = only(grave)
    assert deaths(letter)[0]["reason"] == "expired"
    assert deaths(letter)[0]["original-expiration"] == "100"
    assert letter.message is not None
    assert letter.message.properties().expiration is None
    assert letter.expires is None


def test_an_evicted_message_is_a_dead_letter() -> None:
    rig, _, grave = rig_with_grave({"x-max-length": 1})
    rig.publish("a", "b", "c")
    assert bodies(grave) == ["a", "b"]
    assert [deaths(entry)[0]["reason"] for entry in in_order(grave)] == ["maxlen", "maxlen"]


def test_what_a_ring_lets_go_of_is_a_dead_letter_whoever_holds_it() -> None:
    rig, queue, grave = rig_with_grave({"x-max-length": 1, "x-overflow": "ring"})
    client = rig.consume(queue, prefetch=1)
    rig.publish("a")
    rig.publish("b")
    client.reject("a")
    assert bodies(grave) == ["a"]


def test_a_message_given_back_too_often_is_a_dead_letter() -> None:
    rig, queue, grave = rig_with_grave({"x-delivery-limit": 0})
    rig.publish("a")
    rig.consume(queue).release()
    assert deaths(only(grave))[0]["reason"] == "delivery_limit"


def test_a_refused_publish_may_be_a_dead_letter() -> None:
    rig, queue, grave = rig_with_grave({"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    publishes = rig.publish("a", "b")
    assert [publish.refused for publish in publishes] == [False, True]
    assert (bodies(queue), bodies(grave)) == (["a"], ["b"])
    assert deaths(only(grave))[0]["reason"] == "maxlen"


def test_what_is_purged_deleted_replaced_or_moved_is_no_dead_letter() -> None:
    rig, _, grave = rig_with_grave({"x-last-value-key": "k"})
    rig.declare("elsewhere")
    rig.publish("1", "2", headers={"k": "a"})
    rig.ask(lambda done: rig.vhost.move("q", "elsewhere", 1, done))
    rig.publish("3")
    rig.purge()
    rig.publish("4")
    rig.delete("q")
    assert bodies(grave) == []


def test_the_dead_letter_routing_key_replaces_the_messages_own() -> None:
    rig = Rig()
    grave = rig.declare("dead")
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    rig.publish("a")
    rig.consume(queue).reject()
    letter = only(grave)
    assert letter.message is not None
    assert letter.message.key == "dead"
    assert deaths(letter)[0]["routing-keys"] == ["q"]


def test_deaths_are_told_with_the_last_one_first_and_counted_by_queue_and_reason() -> None:
    rig = Rig()
    retry = rig.declare("retry", {"x-message-ttl": 100, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "retry"})
    rig.publish("a")
    for _ in range(3):
        client = rig.consume(queue)
        client.reject()
        client.cancel()
        assert bodies(retry) == ["a"]
        rig.run(0.2)
    told = [(death["queue"], death["reason"], death["count"]) for death in deaths(only(queue))]
    assert told == [("retry", "expired", 3), ("q", "rejected", 3)]
    assert headers(only(queue))["x-first-death-queue"] == "q"
    assert headers(only(queue))["x-last-death-queue"] == "retry"


def test_a_letter_that_goes_round_without_a_reject_is_dropped() -> None:
    rig = Rig()
    rig.declare("a", {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "b"})
    rig.declare("b", {"x-message-ttl": 50, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "a"})
    rig.publish("round", key="a")
    rig.run(1)
    assert [queue.counters.expired for queue in rig.vhost.queues.values()] == [1, 1]
    assert [queue.ready for queue in rig.vhost.queues.values()] == [0, 0]


def test_a_letter_goes_round_no_more_in_a_queue_whose_name_is_no_text() -> None:
    name = b"a-\xff\x80".decode("utf-8", "surrogateescape")  # in `x-death` it comes back as bytes
    rig = Rig()
    queue = rig.declare(name, {"x-message-ttl": 50, "x-dead-letter-exchange": ""})
    rig.publish("round", key=name)
    rig.run(1)
    assert (queue.counters.expired, queue.ready) == (1, 0)


def test_deaths_in_a_queue_whose_name_is_no_text_are_one_record() -> None:
    name = b"a-\xff\x80".decode("utf-8", "surrogateescape")
    rig = Rig()
    queue = rig.declare(name, {"x-dead-letter-exchange": ""})
    rig.publish("again", key=name)
    client = rig.consume(queue, prefetch=1)
    client.reject()
    rig.run()
    client.reject()
    client.close()
    rig.run()
    records = headers(only(queue))["x-death"]
    assert isinstance(records, list)
    assert [record["count"] for record in records] == [2]


def test_a_queue_that_is_its_own_grave_keeps_what_is_rejected_and_not_what_expires() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-message-ttl": 1000})
    rig.publish("a")
    client = rig.consume(queue, prefetch=1)
    client.reject()
    rig.run()
    assert client.bodies() == ["a", "a"]
    client.close()
    rig.run(2)
    assert queue.ready == 0


def test_a_letter_that_cannot_be_routed_is_dropped_once() -> None:
    rig = Rig()
    queue = rig.declare("q", {"x-dead-letter-exchange": "nowhere"})
    rig.publish("a")
    rig.consume(queue).reject()
    assert not seen(queue)
    assert (queue.counters.rejected, queue.counters.dead_lettered) == (1, 0)


def test_a_letter_reaches_every_queue_of_its_exchange_once() -> None:
    rig, queue, grave = rig_with_grave()
    second = rig.declare("second")
    rig.bind("dlx", "second")
    rig.bind("dlx", "second", "another key")
    rig.publish("a")
    rig.consume(queue).reject()
    assert (bodies(grave), bodies(second)) == (["a"], ["a"])


def test_a_full_grave_that_refuses_gets_no_more_letters() -> None:
    rig = Rig()
    rig.exchange("dlx", "fanout")
    grave = rig.declare("dead", {"x-max-length": 1, "x-overflow": "reject-publish"})
    rig.bind("dlx", "dead")
    queue = rig.declare("q", {"x-dead-letter-exchange": "dlx"})
    rig.publish("a", "b")
    rig.consume(queue).reject()
    assert bodies(grave) == ["a"]
    assert grave.counters.refused == 1


def test_a_long_chain_of_overflowing_graves_is_worked_off() -> None:
    rig = Rig()
    count = 120
    for number in range(count):
        following = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{number + 1}"}
        rig.declare(f"q{number}", {"x-max-length": 0, **following})
    last = rig.declare(f"q{count}")
    rig.publish("a", key="q0")
    letter = only(last)
    assert len(deaths(letter)) == 100
    assert deaths(letter)[0]["queue"] == f"q{count - 1}"


def test_headers_of_a_client_that_only_look_like_deaths_do_no_harm() -> None:
    rig, queue, grave = rig_with_grave()
    for value in ("text", 5, [1, "x", {"count": "many", "queue": "q", "reason": "rejected"}], {"queue": "q"}):
        rig.publish("a", headers={"x-death": value})
        client = rig.consume(queue)
        client.reject()
        client.cancel()
        assert deaths(only(grave))[0]["count"] == 1
        rig.get("dead", no_ack=True)


def test_further_routing_keys_go_along_unless_the_queue_has_a_key_for_its_dead() -> None:
    rig = Rig()
    first, second = rig.declare("first"), rig.declare("second")
    rig.exchange("dlx")
    for name in ("first", "second"):
        rig.bind("dlx", name, name)
    queue = rig.declare("q", {"x-dead-letter-exchange": "dlx"})
    rig.bind("amq.direct", "q", "first")
    rig.publish("a", exchange="amq.direct", key="first", headers={"CC": ["second"]})
    client = rig.consume(queue)
    client.reject()
    assert (bodies(first), bodies(second)) == (["a"], ["a"])
    assert deaths(only(first))[0]["routing-keys"] == ["first", "second"]


class Units(NullStore):
    """A store that writes down what it is told together."""

    durable = True

    def __init__(self) -> None:
        self.depth = 0
        self.units: list[list[str]] = []

    def begin(self) -> None:
        if not self.depth:
            self.units.append([])
        self.depth += 1

    def end(self) -> None:
        self.depth -= 1

    def tell(self, what: str) -> None:
        if self.depth:
            self.units[-1].append(what)

    def enqueued(self, queue: Queue, arrived: Arrived) -> None:
        self.tell(f"+{queue.name}:{len(arrived.messages)}")

    def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
        self.tell(f"-{queue.name}:{count_of(ranges)}")


def test_the_store_is_told_of_a_death_and_its_letters_as_one_unit() -> None:
    store = Units()
    rig = Rig(store=store)
    rig.declare("dead", durable=True)
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}, durable=True)
    rig.publish("a", "b")
    store.units.clear()
    rig.consume(queue).reject()
    assert store.units == [["-q:2", "+dead:2"]]
    assert isinstance(store, QueueObserver)
    assert store.depth == 0


RING = 103
"""Queues: more than a letter can tell deaths."""


def ring(rig: Rig, length: int = RING) -> list[Queue]:
    """Queues that keep nothing, each of which sends its dead on to the next."""
    names = [f"ring{number}" for number in range(length)]
    return [
        rig.declare(
            name, {"x-max-length": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": names[at - length + 1]}
        )
        for at, name in enumerate(names)
    ]


def test_letters_that_go_round_a_ring_too_long_to_tell_end_and_nothing_has_happened() -> None:
    rig = Rig()
    queues = ring(rig)
    with pytest.raises(ProtocolError, match="too many for one step") as refused:
        rig.publish("a", key="ring0")
    assert refused.value.reply_code == PRECONDITION_FAILED
    rig.run()
    assert [queue.counters.enqueued for queue in queues] == [0] * RING
    rig.declare("q")
    rig.publish("b")
    assert bodies(rig.vhost.queues["q"]) == ["b"]


def test_letters_that_double_with_each_death_end() -> None:
    rig = Rig()
    for level in range(30):
        rig.exchange(f"level{level}", "fanout")
        for which in "ab":
            rig.declare(f"{level}{which}", {"x-max-length": 0, "x-dead-letter-exchange": f"level{level + 1}"})
            rig.bind(f"level{level}", f"{level}{which}")
    with pytest.raises(ProtocolError, match="too many for one step"):
        rig.publish("a", exchange="level0")
    assert rig.vhost.queues["0a"].counters.enqueued == 0


def wide(rig: Rig, queues: int) -> list[Queue]:
    """An exchange whose letters all of these get."""
    rig.exchange("wide", "fanout")
    found = [rig.declare(f"wide{number}", {"x-max-length": 1}) for number in range(queues)]
    for queue in found:
        rig.bind("wide", queue.name)
    return found


def test_what_expires_together_leaves_some_at_a_time_if_many_queues_get_the_letters() -> None:
    """Else whoever publishes for a minute into one queue keeps the broker, and a cluster, busy for many."""
    rig = Rig()
    graves = wide(rig, 100)
    queue = rig.declare("q", {"x-message-ttl": 1000, "x-dead-letter-exchange": "wide"})
    rig.publish(*(str(number) for number in range(500)))
    steps: list[int] = []

    class Steps(QueueObserver):
        def dequeued(self, queue: Queue, ranges: Sequence[Range], reason: Reason) -> None:
            steps.append(count_of(ranges))

    queue.observers.append(Steps())
    rig.run(1.5)
    assert steps == [DYING_MAX // 100, DYING_MAX // 100, 500 - 2 * (DYING_MAX // 100)]
    assert (queue.ready, graves[99].counters.enqueued) == (0, 500)


def test_what_expires_together_leaves_at_once_if_it_goes_to_one_queue() -> None:
    rig, queue, grave = rig_with_grave({"x-message-ttl": 1000})
    rig.publish(*(str(number) for number in range(500)))
    rig.run(1.0)
    assert (queue.ready, grave.ready) == (0, 500)


def test_a_reject_whose_letters_would_be_too_many_gives_the_messages_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graveyard, "COPIES_MAX", 500)
    rig = Rig()
    graves = wide(rig, 20)
    queue = rig.declare("q", {"x-dead-letter-exchange": "wide"})
    rig.publish(*(str(number) for number in range(40)))
    client = rig.consume(queue, 40)
    with pytest.raises(ProtocolError, match="too many for one step"):
        client.reject()
    assert [grave.counters.enqueued for grave in graves] == [0] * 20
    rig.run()
    assert len(client.held) == 40
    client.reject(*(str(number) for number in range(25)))
    assert [grave.counters.enqueued for grave in graves] == [25] * 20


def test_what_a_publish_pushes_out_of_a_full_queue_counts_as_its_work() -> None:
    rig = Rig()
    wide(rig, 100)
    rig.declare("q", {"x-max-length": 1, "x-dead-letter-exchange": "wide"})
    rig.declare("usual", {"x-max-length": 1})
    rig.exchange("h", "headers")
    rig.bind("h", "q", arguments={"x-match": "any", "no": "such"})
    vhost = rig.vhost
    assert vhost.work("", "usual", route_bytes("", "usual"), ()) == 1
    assert vhost.work("", "q", route_bytes("", "q"), ()) > 100
    assert vhost.work("", "nobody", route_bytes("", "nobody"), ("q", "usual")) > 100
    assert vhost.work("h", "", route_bytes("h", ""), ()) > 100  # the most that it may be
    assert vhost.work("wide", "", route_bytes("wide", ""), ()) >= 100


def test_a_reject_that_would_have_no_end_gives_the_message_back() -> None:
    rig = Rig()
    ring(rig)
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"})
    rig.publish("a")
    client = rig.consume(queue)
    with pytest.raises(ProtocolError, match="too many for one step"):
        client.reject()
    client.cancel()
    assert bodies(queue) == ["a"]
    assert only(queue).redelivered


def test_messages_whose_expiry_would_have_no_end_stay_and_are_given_to_nobody() -> None:
    rig = Rig()
    ring(rig)
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ring0"})
    rig.publish("a", expiration="10")
    rig.run(1.0)
    assert queue.ready == 1
    assert rig.consume(queue).bodies() == []


def test_very_many_that_die_at_once_and_kill_others_are_all_sent_on() -> None:
    """Each letter may kill another one, in a few queues one behind the other."""
    rig = Rig()
    last = rig.declare("last")
    rig.declare("third", {"x-max-length": 2, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "last"})
    rig.declare("second", {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "third"})
    queue = rig.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "second"})
    rig.publish(*(str(number) for number in range(5_000)))
    rig.consume(queue).reject()
    assert bodies(last) == [str(number) for number in range(5_000 - 5)]
