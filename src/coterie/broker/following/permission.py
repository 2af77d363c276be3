"""Who may act as the link of another broker.

A step names any queue, and its messages carry any `user_id`: neither goes through the permissions of exchanges. So
declaring an exchange of the type `x-replication`, and publishing to it, takes a tag, and each step is checked against
the permissions that its user would need for the same as a client. The broker at which it is published decides: what it
refuses never becomes an event of the cluster.
"""

from __future__ import annotations

from typing import Final

from coterie.amqp.wire.codes import ACCESS_REFUSED
from coterie.broker.arguments import DEAD_EXCHANGE
from coterie.broker.following import steps
from coterie.broker.following.steps import Answer, Step
from coterie.broker.specs import REPLICATION
from coterie.broker.users import ADMINISTRATOR, REPLICATOR, User
from coterie.errors import ProtocolError

_NEEDED: Final = {
    steps.BEGIN: ("configure", "write", "read"),
    steps.PRESENT: ("read",),
    steps.ENQUEUE: ("write",),
    steps.REMOVE: ("read",),
    steps.LIST: (),
    steps.END: ("configure",),
}
"""What a client needs to declare, look into, publish to, purge or delete a queue. To begin is all of that but the last:
the answer says what is there, and what is there of a source's former queue goes."""


def may_replicate(user: User | None) -> bool:
    return user is not None and (REPLICATOR in user.tags or user.administrator)


def check_exchange(user: User | None, kind: str) -> None:
    """Before an exchange of that kind is declared or published to. Raises ProtocolError 403."""
    if kind == REPLICATION and not may_replicate(user):
        text = f"an exchange of the type {REPLICATION} is for users with the tag {_tags()}"
        raise ProtocolError(ACCESS_REFUSED, text)


def refusal(user: User | None, vhost: str, step: Step) -> str:
    """Why a step of this user is not taken; nothing: it is."""
    if user is None or not may_replicate(user):
        return f"steps of a replication are taken from users with the tag {_tags()} only"
    wanted = [(what, step.queue) for what in _NEEDED[step.do]]
    dead_letters = step.arguments.get(DEAD_EXCHANGE)
    if isinstance(dead_letters, str):
        wanted += [("read", step.queue), ("write", dead_letters or "amq.default")]
    for what, name in wanted:
        if not user.may(vhost, what, name):
            return f"{what} access to '{name}' in vhost '{vhost}' refused for user '{user.name}'"
    return ""


def visible(user: User, vhost: str, answer: Answer) -> Answer:
    """Queues that the user could not end are none of its business."""
    if "queues" not in answer:
        return answer
    return {**answer, "queues": [each for each in answer["queues"] if user.may(vhost, "configure", each[0])]}


def _tags() -> str:
    return f"{REPLICATOR} or {ADMINISTRATOR}"
