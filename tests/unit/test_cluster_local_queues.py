"""Queues with a home: every broker routes to them, one has their messages, and they end with it."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_rig import Cluster, Host
from queue_view import seen

from coterie.amqp.wire.codes import INTERNAL_ERROR, NOT_FOUND, PRECONDITION_FAILED, RESOURCE_LOCKED
from coterie.amqp.wire.tables import Table
from coterie.broker import graveyard
from coterie.broker.message import Message
from coterie.broker.queue import Queue
from coterie.broker.specs import Binding, QueueSpec
from coterie.broker.vhost import Got
from coterie.cluster import wire
from coterie.cluster.catchup.snapshot import cut
from coterie.errors import ProtocolError

HOME: Table = {"x-replicated": False}
LETTERS: Table = {**HOME, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}


def started(arguments: Table | None = None, **settings: object) -> tuple[Cluster, Host, Host, Host]:
    """The queue q is at home on a."""
    cluster = Cluster(3, **settings)  # type: ignore[arg-type]
    a, b, c = cluster.started()
    a.declare(arguments=HOME if arguments is None else arguments)
    return cluster, a, b, c


def bodies(host: Host, name: str = "q") -> list[str]:
    return [entry.message.body.decode() for entry in seen(host.queue(name)).values() if entry.message is not None]


def answered(cluster: Cluster, answers: list[object]) -> object:
    cluster.until(lambda: bool(answers))
    assert len(answers) == 1
    return answers[0]


def purge(host: Host, name: str = "q") -> object:
    answers: list[object] = []
    host.vhost.purge(name, answers.append)
    return answered(host.cluster, answers)


def delete(host: Host, name: str = "q", if_unused: bool = False, if_empty: bool = False) -> object:
    answers: list[object] = []
    host.vhost.delete_queue(name, if_unused, if_empty, answers.append)
    return answered(host.cluster, answers)


def count(host: Host, name: str = "q") -> object:
    answers: list[object] = []
    host.vhost.count(name, answers.append)
    return answered(host.cluster, answers)


def code(answer: object) -> int:
    assert isinstance(answer, ProtocolError)
    return answer.reply_code


# Where messages are.


def test_only_the_home_has_the_messages_wherever_they_were_published() -> None:
    cluster, a, b, c = started()
    for host in (a, b, c):
        host.publish(f"from {host.name}")
        cluster.settle()
        assert host.confirmed == [f"from {host.name}"]
    assert bodies(a) == ["from a", "from b", "from c"]
    assert bodies(b) == bodies(c) == []
    assert {host.queue().home for host in (a, b, c)} == {str(a.member.replica.us)}
    assert {host.member.replica.progress for host in (a, b, c)} == {a.member.replica.progress}


@pytest.mark.parametrize("arguments", [{"x-replicated": "false"}, {"qpid.replicated": False}])
def test_the_argument_may_be_a_text_and_has_two_names(arguments: Table) -> None:
    cluster, a, b, _ = started(arguments)
    b.publish("one")
    cluster.settle()
    assert (bodies(a), bodies(b)) == (["one"], [])


@pytest.mark.parametrize("value", ["no", 0, "False"])
def test_a_value_that_is_none_is_refused(value: object) -> None:
    cluster = Cluster(3)
    a, _, _ = cluster.started()
    a.declare(arguments={"x-replicated": value})  # type: ignore[dict-item]
    (error,) = a.errors
    assert error.reply_code == PRECONDITION_FAILED
    assert "x-replicated" in str(error)
    assert "true or false" in str(error)


def test_a_publish_at_home_needs_no_event_and_one_elsewhere_does() -> None:
    cluster, a, b, _ = started()
    before = a.member.replica.progress
    a.publish("one", "two")
    cluster.settle()
    assert a.confirmed == ["one", "two"]
    client = a.consume(prefetch=1)
    cluster.settle()
    client.accept()
    cluster.settle()
    client.accept()
    cluster.settle()
    assert client.seen == ["one", "two"]
    assert a.member.replica.progress == before
    b.publish("three")
    cluster.settle()
    assert a.member.replica.progress.index == before.index + 1
    assert client.seen == ["one", "two", "three"]


def test_what_one_publisher_sends_stays_in_order_also_if_a_part_of_it_goes_through_the_log() -> None:
    cluster, a, _, _ = started()
    a.declare("other")
    for name in ("q", "other"):
        a.vhost.bind(Binding("amq.fanout", "queue", name), lambda _: None)
    cluster.settle()
    sent = [f"m{n}" for n in range(40)]
    for n, body in enumerate(sent):
        a.publish(body, key="q", exchange="amq.fanout" if n % 3 == 0 else "")
        if n % 7 == 0:
            cluster.run(0.0004)
    cluster.settle()
    assert bodies(a) == sent
    assert a.confirmed == sent
    assert bodies(a, "other") == sent[::3]


def test_nothing_of_it_is_written_to_any_disk_but_the_declaration() -> None:
    cluster, a, b, c = started()
    cluster.settle()
    written = [host.store.written() for host in (a, b, c)]
    a.publish(*(f"m{n}" for n in range(20)))
    cluster.settle()
    assert a.store.written() == written[0]
    b.publish(*(f"n{n}" for n in range(20)))
    cluster.settle()
    assert len(bodies(a)) == 40
    assert [host.store.written() for host in (a, b, c)] == written


def test_a_transaction_reaches_home_queues_and_others_at_once() -> None:
    cluster, a, b, c = started()
    a.declare("other")
    a.publish("one")
    client = a.consume()
    cluster.settle()
    taken = client.take("one")
    done: list[str] = []
    a.vhost.transaction(
        [a.made("two"), a.made("three", key="other")], [taken], [], [], lambda _: done.append("committed")
    )
    cluster.settle()
    assert done == ["committed"]
    assert client.seen == ["one", "two"]
    client.accept()
    cluster.settle()
    assert bodies(a) == []
    assert all(bodies(host, "other") == ["three"] for host in (a, b, c))
    b.vhost.transaction([b.made("four"), b.made("five", key="other")], [], [], [], lambda _: done.append("b"))
    cluster.settle()
    assert done == ["committed", "b"]
    assert bodies(a) == ["four"]
    assert bodies(b) == bodies(c) == []
    cluster.check_alike("other")


# Who may do what where.


def test_consuming_and_getting_elsewhere_is_refused_and_says_where_to_go() -> None:
    cluster, a, b, _ = started()
    a.publish("one")
    client = b.consume()
    got = b.get()
    cluster.settle()
    for answer in (client.answers[0], got[0]):
        assert isinstance(answer, ProtocolError)
        assert answer.reply_code == RESOURCE_LOCKED
        assert "the node 'a'" in str(answer)
    here = a.get()
    cluster.settle()
    assert isinstance(here[0], Got)


def test_purges_counts_and_deletes_work_from_everywhere_with_the_homes_numbers() -> None:
    cluster, a, b, c = started()
    a.publish("one", "two", "three")
    cluster.settle()
    assert count(b) == (3, 0)
    assert purge(c) == 3
    assert bodies(a) == []
    b.publish("four", "five")
    assert purge(b) == 2  # behind its own publish
    a.publish("six")
    assert count(a) == (1, 0)
    assert delete(c) == 1
    cluster.settle()
    assert all("q" not in host.vhost.queues for host in (a, b, c))
    assert delete(b) == 0
    assert code(purge(b)) == NOT_FOUND


@pytest.mark.parametrize("asker", ["a", "b"])
def test_whether_it_is_empty_or_used_is_decided_by_its_home(asker: str) -> None:
    cluster, a, b, c = started()
    host = a if asker == "a" else b
    a.publish("one")
    assert code(delete(host, if_empty=True)) == PRECONDITION_FAILED
    client = a.consume()
    cluster.settle()
    client.accept()
    cluster.settle()
    assert code(delete(host, if_unused=True)) == PRECONDITION_FAILED
    assert count(c) == (0, 1)
    client.cancel()
    assert delete(host, if_unused=True, if_empty=True) == 0
    cluster.settle()
    assert all("q" not in each.vhost.queues for each in (a, b, c))


def test_two_who_delete_it_at_the_same_time_are_both_answered() -> None:
    cluster, _, b, c = started()
    answers: list[object] = []
    for host in (b, c):
        host.vhost.delete_queue("q", False, True, answers.append)
    cluster.settle()
    assert answers == [0, 0]
    assert "q" not in b.vhost.queues


def test_messages_cannot_be_moved_out_of_it_by_others_but_into_it() -> None:
    cluster, a, b, c = started()
    a.declare("other")
    b.publish("one", key="other")
    cluster.settle()
    answers: list[object] = []
    c.vhost.move("other", "q", 10, answers.append)
    c.vhost.move("q", "other", 10, answers.append)
    cluster.settle()
    assert answers[0] == 1
    assert code(answers[1]) == PRECONDITION_FAILED
    assert (bodies(a), bodies(b), bodies(c)) == (["one"], [], [])
    cluster.check_alike("other")


def test_an_auto_delete_queue_ends_everywhere_with_its_last_consumer() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.vhost.declare_queue("q", QueueSpec(auto_delete=True, arguments=HOME), False, None, lambda _: None)
    cluster.settle()
    client = a.consume()
    cluster.settle()
    client.cancel()
    cluster.settle()
    assert all("q" not in host.vhost.queues for host in (a, b, c))


def test_an_unused_queue_expires_by_its_homes_clock() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.declare(arguments={**HOME, "x-expires": 2000})
    client = c.consume()
    cluster.run(4)
    assert "q" in a.vhost.queues
    client.cancel()
    cluster.run(4)
    assert all("q" not in host.vhost.queues for host in (a, b, c))


@pytest.mark.parametrize("auto_delete", [True, False])
def test_who_comes_while_an_unused_queue_ends_is_sent_away(auto_delete: bool) -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    spec = QueueSpec(auto_delete=auto_delete, arguments=HOME)
    b.vhost.declare_queue("q", spec, False, None, lambda _: None)
    cluster.settle()
    if auto_delete:
        first = b.consume()
        first.cancel()
    else:
        b.vhost.expire_queue(b.queue())
    late = b.consume()
    assert late.answers == [None]
    cluster.settle()
    assert late.cancelled_by_broker
    assert all("q" not in host.vhost.queues for host in (a, b, c))


def test_what_a_home_queue_took_is_confirmed_although_the_event_of_its_batch_is_void(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, a, *_ = started()
    a.declare("replicated")
    enqueue = Queue.enqueue

    def mistaken(queue: Queue, messages: list[Message]) -> None:
        if queue.name == "replicated":
            raise AssertionError("a mistake")
        enqueue(queue, messages)

    monkeypatch.setattr(Queue, "enqueue", mistaken)
    a.publish_made(a.made("at home", "q"), a.made("void", "replicated"))
    cluster.settle()
    assert (a.confirmed, a.refused, bodies(a)) == (["at home"], ["void"], ["at home"])


# What follows from content is its home's business.


def test_dead_letters_of_a_home_queue_are_published_to_replicated_ones_once() -> None:
    cluster, a, b, c = started(LETTERS)
    b.declare("dead")
    b.publish("one", "two", "three")
    client = a.consume()
    cluster.settle()
    client.reject("one", "two", "three")
    cluster.settle()
    assert all(sorted(bodies(host, "dead")) == ["one", "three", "two"] for host in (a, b, c))
    cluster.check_alike("dead")


@pytest.mark.parametrize("limit", [{"x-max-length": 2}, {"x-message-ttl": 100}])
def test_overflow_and_expiry_are_computed_at_home_alone(limit: Table) -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    c.declare(arguments={**LETTERS, **limit})  # which does not keep the time of the others
    b.declare("dead")
    before = c.member.replica.progress.index
    c.publish("one", "two")
    b.publish("three", "four")
    cluster.run(1)
    gone = 4 if "x-message-ttl" in limit else 2
    assert len(bodies(c)) == 4 - gone
    assert (
        c.member.replica.progress.index <= before + 1 + gone
    )  # a publish, and letters: nobody else says that time is over
    assert all(len(bodies(host, "dead")) == gone for host in (a, b, c))
    cluster.check_alike("dead")


def test_dead_letters_of_a_replicated_queue_reach_a_home_queue_once() -> None:
    cluster, a, b, c = started()
    b.declare("other", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client = c.consume("other")
    b.publish("one", key="other")
    cluster.settle()
    client.reject("one")
    cluster.settle()
    assert (bodies(a), bodies(b), bodies(c)) == (["one"], [], [])


def test_a_full_home_queue_refuses_its_own_publishers_and_drops_what_comes_from_elsewhere() -> None:
    cluster, a, b, _ = started({**HOME, "x-max-length": 2, "x-overflow": "reject-publish"})
    a.publish("one", "two", "three")
    cluster.settle()
    assert (a.confirmed, a.refused) == (["one", "two"], ["three"])
    b.publish("four")
    cluster.settle()
    assert b.confirmed == ["four"]
    assert bodies(a) == ["one", "two"]


def test_a_transaction_at_home_that_its_queue_refuses_is_refused_whole() -> None:
    cluster, a, b, c = started({**HOME, "x-max-length": 1, "x-overflow": "reject-publish"})
    a.declare("other")
    a.publish("one")
    cluster.settle()
    made = [a.made("two"), a.made("three", key="other")]
    done: list[str] = []
    a.vhost.transaction(made, [], [], [], lambda _: done.append("answered"))
    cluster.settle()
    assert done == ["answered"]
    assert [publish.refused for publish in made] == [True, False]
    assert bodies(a) == ["one"]
    assert all(bodies(host, "other") == [] for host in (a, b, c))


def test_a_transaction_of_which_the_part_at_home_fails_is_not_answered_as_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, a, b, c = started({**HOME, "x-dead-letter-exchange": ""})
    a.declare("other")
    a.publish("one", "two")
    client = a.consume()
    cluster.settle()

    def make_letter(*args: object) -> Any:
        raise AssertionError("a mistake")

    monkeypatch.setattr(graveyard, "make_letter", make_letter)
    answers: list[ProtocolError | None] = []
    made = [a.made("three", key="other")]
    a.vhost.transaction(made, [client.take("one")], [client.take("two")], [], answers.append)
    cluster.settle()
    assert [code(answer) for answer in answers] == [INTERNAL_ERROR]
    assert all(bodies(host, "other") == ["three"] for host in (a, b, c))
    assert client.seen == ["one", "two", "one", "two"]
    client.accept()
    cluster.settle()
    assert bodies(a) == []


def test_a_transaction_is_told_what_a_home_queue_refuses_that_was_filled_meanwhile() -> None:
    cluster, a, b, c = started({**HOME, "x-max-length": 1, "x-overflow": "reject-publish"})
    a.declare("other")
    made = [a.made("one"), a.made("two", key="other")]
    answers: list[ProtocolError | None] = []
    a.vhost.transaction(made, [], [], [], answers.append)
    a.publish("first")  # needs no event
    cluster.settle()
    assert answers == [None]
    assert [publish.refused for publish in made] == [True, False]
    assert bodies(a) == ["first"]
    assert all(bodies(host, "other") == ["two"] for host in (a, b, c))


def test_a_letter_that_a_full_home_queue_refuses_dies_once() -> None:
    refusing: Table = {"x-max-length": 0, "x-overflow": "reject-publish-dlx"}
    cluster, a, b, c = started({**LETTERS, **refusing})
    b.declare("dead")
    b.declare("other", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
    client = c.consume("other")
    b.publish("one", key="other")
    cluster.settle()
    client.reject("one")
    cluster.settle()
    assert all(bodies(host, "dead") == ["one"] for host in (a, b, c))
    cluster.check_alike("dead")


def test_confirms_of_one_publisher_stay_in_order_while_another_one_waits_for_a_home() -> None:
    cluster, a, b, _ = started()
    b.declare("mine", HOME)
    b.declare("other")
    purged: list[object] = []
    b.vhost.purge("q", purged.append)  # decided by a
    sent = [f"m{n}" for n in range(6)]
    for n, body in enumerate(sent):
        b.publish(body, key="mine" if n % 2 == 0 else "other")
    cluster.settle()
    assert b.confirmed == sent
    assert purged == [0]
    assert a.queue("mine").elsewhere


def test_limits_of_a_refusing_home_queue_do_not_undo_a_transaction_of_another_broker() -> None:
    cluster, a, b, c = started({**HOME, "x-max-length": 1, "x-overflow": "reject-publish"})
    a.declare("other")
    a.publish("one")
    cluster.settle()
    done: list[str] = []
    b.vhost.transaction([b.made("two"), b.made("three", key="other")], [], [], [], lambda _: done.append("b"))
    cluster.settle()
    assert done == ["b"]
    assert bodies(a) == ["one"]
    assert all(bodies(host, "other") == ["three"] for host in (a, b, c))


# The end of its home, and other members.


def test_it_ends_everywhere_with_its_home_and_bindings_with_it() -> None:
    cluster, a, b, c = started()
    b.vhost.bind(Binding("amq.topic", "queue", "q", "x.#"), lambda _: None)
    b.publish("lost")
    cluster.settle()
    a.kill()
    cluster.until(lambda: "q" not in b.vhost.queues and "q" not in c.vhost.queues)
    assert not b.vhost.exchanges["amq.topic"].bindings
    again = cluster.start(0)
    cluster.until(lambda: again.serves)
    assert "q" not in again.vhost.queues
    b.declare(arguments=HOME)  # another one, at home on b
    c.publish("new")
    cluster.settle()
    assert (bodies(b), bodies(again)) == (["new"], [])


def test_questions_to_a_home_that_is_lost_are_answered() -> None:
    cluster, a, b, c = started()
    a.publish("one")
    cluster.settle()
    answers: dict[str, list[object]] = {"purge": [], "delete": []}
    a.kill()
    b.vhost.purge("q", answers["purge"].append)
    c.vhost.delete_queue("q", False, True, answers["delete"].append)
    cluster.until(lambda: all(answers.values()))
    assert code(answers["purge"][0]) == NOT_FOUND
    assert answers["delete"] == [0]
    assert "q" not in b.vhost.queues


def test_a_restart_of_all_brokers_leaves_nothing_of_a_durable_one() -> None:
    cluster, a, b, c = started()
    a.declare("other")
    a.publish("lost")
    a.publish("kept", key="other")
    cluster.settle()
    for host in (a, b, c):
        host.kill(power=False)
    hosts = [cluster.start(number) for number in range(3)]
    cluster.until(lambda: all(host.serves for host in hosts))
    assert all("q" not in host.vhost.queues for host in hosts)
    assert all(bodies(host, "other") == ["kept"] for host in hosts)


def test_one_that_was_cut_off_loses_its_queues_and_its_clients() -> None:
    cluster, a, b, c = started()
    client = a.consume()
    cluster.settle()
    heal = cluster.part("a")
    cluster.until(lambda: "q" not in b.vhost.queues)
    heal()
    cluster.until(lambda: a.serves)
    assert client.gone
    assert all("q" not in host.vhost.queues for host in (a, b, c))
    assert not a.member.local_queues.here


@pytest.mark.parametrize("dispatch", ["credit", "ownership"])
def test_an_update_carries_its_wiring_and_home_and_not_its_messages(dispatch: str) -> None:
    cluster, a, _, c = started(dispatch=dispatch)
    a.publish("one")
    client = a.consume(prefetch=1)
    cluster.settle()
    assert cut(a.broker, a.member.applier, wire.VERSION).queues == []
    c.kill()
    cluster.until(lambda: len(a.member.replica.in_step) == 2)
    late = cluster.start(2)
    cluster.until(lambda: late.serves)
    assert late.queue().home == str(a.member.replica.us)
    assert late.queue().elsewhere
    late.publish("two")
    cluster.settle()
    client.accept()
    cluster.settle()
    assert client.seen == ["one", "two"]
    assert count(late) == (0, 1)


def test_an_exclusive_queue_is_at_home_where_its_connection_is() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare("mine", exclusive=True)
    client = a.consume("mine", no_ack=True)
    cluster.settle()
    before = a.member.replica.progress
    a.publish("one", key="mine")
    cluster.settle()
    assert a.member.replica.progress == before
    b.publish("two", key="mine")
    cluster.settle()
    assert client.seen == ["one", "two"]
    assert bodies(b, "mine") == []
    a.vhost.close_owner(a)
    cluster.settle()
    assert all("mine" not in host.vhost.queues for host in (a, b, c))
