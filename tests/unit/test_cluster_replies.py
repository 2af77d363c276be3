"""Direct replies in a cluster: whoever answers may be a client of another broker than whoever asked."""

from __future__ import annotations

from amqp_rig import Client, Heard, Rig, publish_frames, quick_user
from cluster_rig import Cluster, Host

from coterie.amqp.server import Server
from coterie.amqp.wire.methods import METHODS
from coterie.amqp.wire.properties import Properties
from coterie.broker.specs import REPLY_TO
from coterie.broker.users import Users, UserSettings
from coterie.cluster.member import Member
from coterie.group.channel import BufferFull
from coterie.group.members import Address


class Door(Rig):
    """The AMQP server of one broker of a cluster."""

    def __init__(self, host: Host) -> None:
        self.world, self.runtime, self.broker = host.cluster.world, host.runtime, host.broker
        self.users = Users(self.runtime, self.broker.store, UserSettings(loopback_users=()))
        self.users.restore([quick_user("guest")])
        self.server = Server(self.runtime, self.broker, self.users, None)

    def run(self, seconds: float = 0.0) -> None:
        super().run(max(seconds, 0.3))


def clients(*hosts: Host) -> list[Client]:
    return [Door(host).client() for host in hosts]


def waits(client: Client) -> str:
    """It waits for replies, at the address that others see."""
    assert client.call(1, "basic.consume", queue=REPLY_TO, no_ack=True).name == "basic.consume-ok"
    asked = client.connection.channels[1].replies
    assert asked is not None
    return asked.name


def heard(client: Client) -> list[tuple[str, bytes]]:
    return [(each.name, each.body) for each in client.heard()]


def declared(client: Client, name: str) -> Heard:
    return client.call(1, "queue.declare", queue=name, passive=True)


def test_a_question_is_answered_by_a_client_of_any_broker() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    asker, first, second = clients(a, b, c)
    asker.call(1, "queue.declare", queue="questions")
    asker.call(1, "basic.consume", queue=REPLY_TO, no_ack=True)
    for client in (first, second):
        client.call(1, "basic.qos", prefetch_count=1)
        client.call(1, "basic.consume", queue="questions")
    for body in (b"one", b"two"):
        asker.publish(1, "", "questions", body, Properties(reply_to=REPLY_TO, correlation_id=body.decode()))
    cluster.settle()
    for client in (first, second):
        (question,) = client.heard()
        assert question.properties is not None
        address, number = question.properties.reply_to, question.properties.correlation_id
        assert address is not None
        client.publish(1, "", address, b"answer to " + question.body, Properties(correlation_id=number))
    cluster.settle()
    answers = asker.heard()
    assert {answer.body for answer in answers} == {b"answer to one", b"answer to two"}
    for answer in answers:
        assert answer.properties is not None
        assert answer.body == f"answer to {answer.properties.correlation_id}".encode()
        assert not answer["exchange"]


def test_replies_of_one_responder_come_in_their_order_also_large_ones() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    bodies = [bytes((n,)) * (300_000 if n % 5 == 0 else 10) for n in range(20)]
    for body in bodies:
        responder.publish(1, "", address, body)
    cluster.settle()
    assert [body for _, body in heard(asker)] == bodies


def test_replies_that_the_group_has_no_room_for_wait_and_keep_their_order() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    full = True
    send = b.channel.send_nowait

    def no_room(data: bytes, dest: Address | None = None) -> None:
        if full:
            raise BufferFull("no room")
        send(data, dest)

    b.channel.send_nowait = no_room  # type: ignore[method-assign,assignment]
    responder.connection.received(publish_frames(1, "", address, b"one"))
    full = False
    responder.connection.received(publish_frames(1, "", address, b"two"))
    cluster.settle()
    assert [body for _, body in heard(asker)] == [b"one", b"two"]


def test_an_address_names_its_broker_and_is_as_hard_to_guess_as_that_of_a_broker_alone() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    addresses = [waits(client) for client in clients(a, a, b)]
    tags = [address.removeprefix(f"{REPLY_TO}.").partition(".")[0] for address in addresses]
    secrets = [address.rpartition(".")[2] for address in addresses]
    assert tags[0] == tags[1] != tags[2]
    assert len(set(secrets)) == 3
    assert all(len(secret) == 32 for secret in secrets)


def test_a_passive_declare_asks_the_broker_that_the_address_names() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    found = declared(responder, address)
    assert (found.name, found["queue"], found["consumer_count"]) == ("queue.declare-ok", address, 1)
    asker.call(1, "channel.close")
    refused = declared(responder, address)
    assert (refused.name, refused["reply_code"]) == ("channel.close", 404)


def test_a_mandatory_reply_to_a_lost_broker_is_returned_and_a_question_about_it_answered() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    responder.publish(1, "", address, b"taken", mandatory=True)
    assert heard(responder) == []
    heal = cluster.part("a")
    responder.connection.received(
        METHODS["queue.declare"].frame(1, queue=address, passive=True)
    )  # before anybody knows that it is lost
    cluster.until(lambda: len(b.member.replica.in_step) == 2)
    cluster.settle()
    (refused,) = responder.heard()
    assert (refused.name, refused["reply_code"]) == ("channel.close", 404)
    (other,) = clients(c)
    other.publish(1, "", address, b"late", mandatory=True)
    (returned,) = other.heard()
    assert (returned.name, returned["reply_code"], returned.body) == ("basic.return", 312, b"late")
    heal()
    cluster.until(lambda: a.serves)


def test_the_address_of_an_earlier_life_of_a_broker_leads_nowhere() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    a.kill()
    cluster.until(lambda: len(b.member.replica.in_step) == 2)
    again = cluster.start(0)
    cluster.until(lambda: again.serves)
    responder.publish(1, "", address, b"late", mandatory=True)
    assert heard(responder) == [("basic.return", b"late")]


def test_words_about_replies_that_make_no_sense_are_survived() -> None:
    cluster = Cluster(3)
    a, b, _ = cluster.started()
    asker, responder = clients(a, b)
    address = waits(asker)
    member: Member = b.member
    for data in (b"\x05", b"\x05\x00\x01", b"\x05\x00\x01/\x00", b"\x06\x00", b"\x07\x01", b"\x05\x00\x01\xff"):
        member.channel.send_nowait(data, a.member.replica.us)
    cluster.settle()
    responder.publish(1, "", address, b"fine")
    assert heard(asker) == [("basic.deliver", b"fine")]
