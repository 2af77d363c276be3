"""Who is told that a full queue of a cluster did not take a message: exactly whoever published it."""

from __future__ import annotations

from cluster_rig import Cluster, Host

from coterie.amqp.wire.tables import Table
from coterie.broker.publish import Publish

STRICT: Table = {"x-max-length": 180, "x-overflow": "reject-publish"}


def told(host: Host, made: list[Publish]) -> list[Publish]:
    """A list that gets those of them that were refused, once they are answered."""
    refused: list[Publish] = []
    host.vhost.publish(made, lambda: refused.extend(each for each in made if each.refused))
    return refused


def test_of_messages_of_one_byte_those_beyond_the_room_are_refused_and_no_others() -> None:
    """CPython has one object for all bodies of the same single byte, and one for all empty ones."""
    for body in ("x", ""):
        cluster = Cluster(3)
        a, _, _ = cluster.started()
        a.declare(arguments=STRICT)
        made = [a.made(body) for _ in range(200)]
        refused = told(a, made)
        cluster.settle()
        assert refused == made[180:]
        assert len(a.content()) == 180
        cluster.check_alike()


def test_in_an_event_of_several_connections_each_is_told_of_its_own() -> None:
    cluster = Cluster(3)
    a, _, _ = cluster.started()
    a.declare(arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    a.declare("roomy")
    a.publish("1", "2")  # while these are under way, others are gathered into one event
    a.publish("3")
    first, second, third = ([a.made("x", key) for _ in range(3)] for key in ("roomy", "q", "q"))
    refused = [told(a, made) for made in (first, second, third)]
    assert a.member.proposer._publishing is not None, "they are one event"
    cluster.settle()
    assert refused == [[], [second[2]], third]
    assert len(a.content("roomy")) == 3
    cluster.check_alike()


def test_hidden_copies_do_not_hide_a_refusal() -> None:
    """The message that queues get is another one than the client sent: it does not tell of its hidden copies."""
    cluster = Cluster(3)
    a, _, _ = cluster.started()
    a.declare(arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    a.declare("copy")
    a.publish("one", "two", headers={"BCC": ["copy"]})
    cluster.settle()
    assert (a.confirmed, a.refused) == (["one"], ["two"])


def test_letters_of_a_queue_with_a_home_are_nobodys_publishes() -> None:
    cluster = Cluster(3)
    a, _, _ = cluster.started()
    a.declare("graves", {"x-max-length": 1, "x-overflow": "reject-publish"})
    a.declare("home", {"x-replicated": False, "x-max-length": 1, "x-dead-letter-exchange": "",
                       "x-dead-letter-routing-key": "graves"})  # fmt: skip
    a.declare("roomy")
    a.publish("1", key="roomy")
    a.publish("2", key="roomy")
    a.publish("x", "x", "x", key="home")  # two of them die, and the second letter is refused
    a.publish("x", "x", key="roomy")
    a.publish("x", key="graves")
    cluster.settle()
    assert sorted(a.confirmed) == ["1", "2", "x", "x", "x", "x", "x"]
    assert a.refused == ["x"]
