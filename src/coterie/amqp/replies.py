"""Direct reply-to: a client that asks a question gets the answer on its own channel, through no queue.

It consumes from `amq.rabbitmq.reply-to` and names that in reply_to; whoever answers sees a name that leads back to the
channel, for as long as it is open; in a cluster, from every broker. Nothing is kept: a reply to a channel that is gone,
or that does not take what it has been sent already, is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from coterie.amqp.wire.codes import PRECONDITION_FAILED
from coterie.amqp.wire.methods import Call
from coterie.broker.message import Message
from coterie.broker.specs import REPLY_TO
from coterie.errors import ProtocolError

if TYPE_CHECKING:
    from coterie.amqp.channel import Channel

PATIENCE: Final = 8
"""Times `write_high` that may wait for a client before replies to it are dropped."""


class Replies:
    """A channel's consumer of replies: in the vhost's eyes, something that can be published to."""

    def __init__(self, channel: Channel, tag: str) -> None:
        self.tag = tag
        secret, home = channel.connection.runtime.entropy(16).hex(), channel.vhost.cluster.reply_tag()
        self.name = f"{REPLY_TO}.{home}.{secret}" if home else f"{REPLY_TO}.{secret}"
        self.dropped = 0
        self._channel = channel
        channel.vhost.pseudo[self.name] = self
        channel.inbound.replies_to(self.name)

    def enqueue(self, messages: Sequence[Message], /) -> None:
        channel = self._channel
        out = channel.connection.outbox
        for message in messages:
            if out.waiting > PATIENCE * channel.connection.settings.write_high:
                self.dropped += 1
                continue
            channel.frames.reply(self.tag, channel.deliveries.tags.next_tag, message, out.parts)
            channel.deliveries.skip(1)
            channel.traffic.delivered_no_ack += 1
            out.wrote(len(message.body))

    def end(self) -> None:
        channel = self._channel
        channel.vhost.pseudo.pop(self.name, None)
        channel.inbound.replies_to(None)
        channel.replies = None


def consume_replies(channel: Channel, call: Call, tag: str) -> None:
    if not call.flag("no_ack"):
        raise ProtocolError(PRECONDITION_FAILED, "reply consumer cannot acknowledge")
    if channel.replies is not None:
        raise ProtocolError(PRECONDITION_FAILED, "reply consumer already set")
    channel.replies = Replies(channel, tag)
    channel.answer(call, "basic.consume-ok", consumer_tag=tag)
