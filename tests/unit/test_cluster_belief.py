"""A view with a majority is believed only when others are heard in it: they may be on their way to another one."""

from __future__ import annotations

from cluster_rig import Cluster, Host

from coterie.group.members import View


def publish_when_blocked(host: Host, body: str) -> None:
    """At the last moment before the next view: what is sent there has no place in the order when its view ends."""

    def block() -> None:
        host.publish(body, delivery_mode=1)

    host.member.block = block  # type: ignore[method-assign]


def stop_in_next_view(host: Host, other: Host) -> list[View]:
    """As soon as one broker is in the next view another one stands still, until it is resumed. Gives that view."""
    views: list[View] = []
    accepted = host.member.view_accepted

    def accept(view: View) -> None:
        if not views:
            views.append(view)
            other.node.pause()
        accepted(view)

    host.member.view_accepted = accept  # type: ignore[method-assign]
    return views


def test_what_a_view_left_open_is_confirmed_when_a_majority_was_heard_in_the_next_one() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    publish_when_blocked(b, "open")
    views = stop_in_next_view(b, a)
    c.kill()
    cluster.until(lambda: bool(views))
    assert [member.name for member in views[0].members] == ["a", "b"]
    cluster.run(0.1)
    assert [body for _, body, _, _ in b.content()] == ["open"]
    assert b.member.replica.serves
    assert not b.confirmed  # for all that b knows, a may be going on with others, without it
    a.node.resume(a.node.incarnation)
    cluster.until(lambda: b.confirmed == ["open"])
    cluster.check_alike()


def test_what_a_view_left_open_is_not_given_to_consumers_before_that_either() -> None:
    cluster = Cluster(3)
    a, b, c = cluster.started()
    a.declare()
    client = b.consume(prefetch=10)
    cluster.settle()
    publish_when_blocked(b, "open")
    views = stop_in_next_view(b, a)
    c.kill()
    cluster.until(lambda: bool(views))
    cluster.run(0.1)
    assert not client.seen
    a.node.resume(a.node.incarnation)
    cluster.until(lambda: client.seen == ["open"])
