"""The commands about messages: consuming, getting and settling them. Publishing and basic.ack have their own path.

How many messages a client may hold is decided by its qos: per consumer, for those that come after it, or per channel,
for all at once (`global`); whichever was said last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from coterie.amqp.deliveries import Settled, held_ranges
from coterie.amqp.replies import consume_replies
from coterie.amqp.subscription import Subscription
from coterie.amqp.wire.codes import NOT_ALLOWED, NOT_IMPLEMENTED, PRECONDITION_FAILED
from coterie.amqp.wire.methods import Call
from coterie.amqp.wire.tables import encode_table
from coterie.broker.delivery import count_of
from coterie.broker.memory import FEW, SMALL
from coterie.broker.specs import REPLY_TO
from coterie.broker.vhost import Got
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.amqp.channel import Channel


def qos(channel: Channel, call: Call) -> None:
    size, count = call.number("prefetch_size"), call.number("prefetch_count")
    if size:
        raise ProtocolError(NOT_IMPLEMENTED, f"prefetch_size!=0 ({size})")
    if call.flag("global"):
        channel.prefetch_all = count
    else:
        channel.prefetch, channel.prefetch_all = count, 0
        if channel.connection.changes_prefetch:
            for subscription in channel.consumers.values():
                subscription.prefetch = count
    channel.send("basic.qos-ok")
    channel.wake()


def consume(channel: Channel, call: Call) -> None:
    name, tag = channel.queue_name(call), call.text("consumer_tag")
    if tag in channel.consumers or (channel.replies is not None and tag == channel.replies.tag):
        raise ProtocolError(NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    limit = channel.connection.settings.consumers_max
    if len(channel.consumers) >= limit:
        raise ProtocolError(NOT_ALLOWED, f"reached maximum ({limit}) of consumers per channel")
    watch = channel.connection.server.broker.memory_watch
    if watch.exhausted and (len(channel.consumers) >= FEW or len(encode_table(call.table("arguments"))) > SMALL):
        text = f"a channel may have {FEW} consumers, and one of them {SMALL} bytes of arguments, while memory runs out"
        raise ProtocolError(PRECONDITION_FAILED, text)
    if not tag:
        channel.tags += 1
        tag = f"amq.ctag-{channel.connection.token}-{channel.number}-{channel.tags}"
    if name == REPLY_TO:
        consume_replies(channel, call, tag)
        return
    channel.connection.permit("read", "queue", name)
    queue = channel.vhost.queue(name, channel.connection)
    no_ack, exclusive = call.flag("no_ack"), call.flag("exclusive")
    subscription = Subscription(
        tag, queue, channel, no_ack, exclusive, call.table("arguments"), channel.prefetch
    )  # fmt: skip
    channel.consumers[tag] = subscription
    if no_ack:
        channel.unacknowledged = channel.connection.unacknowledged = True

    def consuming(_: None) -> None:
        if channel.traced is not None:
            channel.traced.consumer(subscription, "opened")
        channel.answer(call, "basic.consume-ok", consumer_tag=tag)
        subscription.started = True
        queue.wake(subscription)

    done = channel.later(call, consuming)

    def decided(error: ProtocolError | None) -> None:
        if error is not None:
            channel.consumers.pop(tag, None)
        done(error)

    channel.vhost.consume(subscription, decided)


def cancel(channel: Channel, call: Call) -> None:
    tag = call.text("consumer_tag")
    subscription = channel.consumers.get(tag)
    if subscription is None:
        if channel.replies is not None and channel.replies.tag == tag:
            channel.replies.end()
        channel.answer(call, "basic.cancel-ok", consumer_tag=tag)
        return
    ended = subscription

    def cancelled(_: None) -> None:
        channel.consumers.pop(tag, None)
        if channel.traced is not None:
            channel.traced.consumer(ended, "closed")
        channel.answer(call, "basic.cancel-ok", consumer_tag=tag)

    ended.ending = True
    channel.vhost.end(ended, partial(channel.later(call, cancelled), None))


def get(channel: Channel, call: Call) -> None:
    name, no_ack = channel.queue_name(call), call.flag("no_ack")
    channel.connection.permit("read", "queue", name)

    def got(result: Got | None) -> None:
        if result is None:
            channel.traffic.get_empty += 1
            channel.send("basic.get-empty")
            return
        out, delivery = channel.connection.outbox, result.delivery
        if channel.traced is not None:
            channel.traced.handed(channel, delivery)
        channel.frames.get_ok(channel.deliveries.tags.next_tag, delivery, result.left, out.parts)
        if no_ack:
            channel.deliveries.skip(1)
            channel.traffic.got_no_ack += 1
        else:
            channel.deliveries.add(None, delivery)
            channel.traffic.got += 1
        channel.traffic.redelivered += count_of(delivery.flagged)
        out.wrote(delivery.size)

    done = channel.later(call, got)

    def decided(result: Got | ProtocolError | None) -> None:
        if isinstance(result, Got) and channel.closing and not no_ack:  # too late: nobody has seen it
            result.delivery.release(redelivered=False)
        done(result)

    channel.vhost.get(name, channel, no_ack, decided, channel.connection)


def nack(channel: Channel, call: Call) -> None:
    _refuse(channel, call.number("delivery_tag"), call.flag("multiple"), call.flag("requeue"))


def reject(channel: Channel, call: Call) -> None:
    _refuse(channel, call.number("delivery_tag"), False, call.flag("requeue"))


def _refuse(channel: Channel, tag: int, multiple: bool, requeue: bool) -> None:
    transaction = channel.transaction
    if transaction is not None:
        into = transaction.requeues if requeue else transaction.rejects
        into += channel.deliveries.withdraw(tag, multiple)
        return
    refused: Settled = {}
    channel.deliveries.take(tag, multiple, refused)
    answers = held_ranges(refused)
    if channel.traced is not None and not requeue:
        channel.traced.answered("reject", channel, answers)
    for held in answers:
        channel.traffic.rejected += count_of(held.ranges)
        if requeue:
            held.queue.release(held.holder, held.ranges)
        else:
            work = channel.work_of_letters(held)
            held.queue.reject(held.holder, held.ranges)
            channel.charge(work)
    channel.flush()


def recover(channel: Channel, call: Call) -> None:
    """Everything unsettled goes back to its queue, and from there to whoever is next."""
    if not call.flag("requeue"):
        raise ProtocolError(NOT_IMPLEMENTED, "requeue=false")
    for held in channel.deliveries.take_all():
        held.queue.release(held.holder, held.ranges)
    if call.method.name == "basic.recover":
        channel.send("basic.recover-ok")
    channel.flush()


def flow(channel: Channel, call: Call) -> None:
    if not call.flag("active"):
        raise ProtocolError(NOT_IMPLEMENTED, "active=false: use basic.qos")
    channel.send("channel.flow-ok", active=True)


def ignore(channel: Channel, call: Call) -> None:
    """An answer to what was not asked."""


COMMANDS: Final[dict[str, Callable[[Channel, Call], None]]] = {
    "basic.qos": qos,
    "basic.consume": consume,
    "basic.cancel": cancel,
    "basic.cancel-ok": ignore,
    "basic.get": get,
    "basic.nack": nack,
    "basic.reject": reject,
    "basic.recover": recover,
    "basic.recover-async": recover,
    "channel.flow": flow,
}
