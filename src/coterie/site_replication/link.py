"""A link: what this broker, or cluster, does to have its queues at another one too.

In a cluster the broker that keeps the time runs it, and the next one goes on when that is lost. It connects, tells
which queues were deleted meanwhile, begins a session for each queue, removes there what is no longer here, and then
follows the queue: messages behind the mark of the other side, and what leaves. Nothing leaves the cluster that others
could undo: what was read waits until a majority holds it, or, alone, until it is on disk.

  idle        another broker of the cluster runs it
  connecting  the other side was not reached yet
  running
  waiting     it failed, and is tried again in a while: `why` says what to do
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from coterie import patterns
from coterie.broker import records
from coterie.broker.following import steps
from coterie.broker.following.ranges import Range
from coterie.broker.policy import REPLICATE
from coterie.errors import CoterieError
from coterie.logs import Log
from coterie.site_replication.client import Client
from coterie.site_replication.feed import Feed, behind

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.broker.queue import Queue
    from coterie.broker.ranges import Range as Positions
    from coterie.broker.rows import Row
    from coterie.broker.vhost import Vhost
    from coterie.runtime.base import Timer
    from coterie.site_replication.address import Destination
    from coterie.site_replication.settings import ReplicationSettings

log = Log(__name__)
TOLD_RANGES = 2000
"""Ranges of positions in one step."""


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """One queue of a link."""

    queue: str
    state: str
    """`running`, or why it is not."""
    sent: int
    """The position up to which it was sent."""
    confirmed: int
    """And is safe on the other side."""
    behind: int
    """Messages that the other side may not have; at most so many."""


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """How a link is, as this broker sees it."""

    to: str
    vhost: str
    state: str
    why: str
    since: float
    """By the wall's clock."""
    messages: int
    """That this broker has sent since it was started."""
    removals: int
    """Ranges of positions that it has told as gone."""
    queues: tuple[FollowerStatus, ...]

    @property
    def behind(self) -> int:
        return sum(each.behind for each in self.queues)


class Portion(NamedTuple):
    """What is to be told of one queue, when nobody can undo it any more."""

    feed: Feed
    gone: list[Range]
    upto: int
    found: list[Row]


class Link:
    """To one destination."""

    def __init__(self, broker: Broker, destination: Destination, settings: ReplicationSettings) -> None:
        self._broker = broker
        self._runtime = broker.runtime
        self._settings = settings
        self.destination = destination
        self.state = "idle"
        self.why = ""
        self.since = self._runtime.wall()
        self.messages = self.removals = 0
        self._source = ""
        self._client: Client | None = None
        self._feeds: dict[str, Feed] = {}
        self._left_at: dict[str, tuple[int, int]] = {}
        """By queue: its incarnation, and up to where it was confirmed when there was a link last."""
        self._refused: dict[str, tuple[str, float]] = {}
        """By queue: why the other side does not take it, and when to ask again."""
        self._looked: tuple[Vhost, int] | None = None
        self._chosen: dict[str, Queue] = {}
        """As of that state of the wiring."""
        self._failures = 0
        self._host = 0
        self._stopped = False
        self._wake: Callable[[None], None] | None = None
        self._woken = False
        self._timer: Timer | None = None

    # Its life.

    def start(self, source: Callable[[Callable[[str], None]], None]) -> None:
        """`source` calls with the identity of this broker or cluster."""
        self._identify = source
        self._timer = self._runtime.call_later(0, self._tick)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._client is not None:
            self._client.close()

    def _tick(self) -> None:
        """Look whether it is for this broker to run it."""
        keeps = self._broker.cluster.keeps_time()
        if not keeps and self._client is not None:
            self._client.fail("another broker of this cluster keeps the time now")
        if not keeps:
            self._say("idle", "")
        elif self._client is None and self.state != "waiting":
            self._begin()
        self._wake_up()  # there may be new queues
        self._timer = self._runtime.call_later(self._settings.look_interval, self._tick)

    def _say(self, state: str, why: str) -> None:
        if (state, why) == (self.state, self.why):
            return
        self.state, self.why, self.since = state, why, self._runtime.wall()
        if state == "waiting":
            log.warning("replication: the link is down, and is tried again", to=self.destination.name, why=why)
        elif state != "connecting":
            log.info(f"replication: the link is {state}", to=self.destination.name)

    def _begin(self) -> None:
        client = self._client = Client(self._runtime, self.destination, self._settings)
        client.ended = self._wake_up
        if self.state != "waiting":
            self._say("connecting", "")
        self._runtime.spawn(self._run(client))

    async def _run(self, client: Client) -> None:
        hosts = self.destination.hosts
        try:
            try:
                self._source = await client.wait(self._identify)
                await client.open(hosts[self._host % len(hosts)])
                self._say("running", "")
                await self._serve(client)
            except CoterieError as error:
                self._failed(str(error))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self._failed(f"the other side answers what this broker does not understand: {error!r}")
        finally:
            client.close()
            self._client = None
            for feed in self._feeds.values():
                self._drop(feed)
            self._feeds.clear()
            self._refused.clear()

    def _failed(self, why: str) -> None:
        if self._stopped or not self._broker.cluster.keeps_time():
            return
        settings = self._settings
        self._host += 1
        again: float = min(settings.retry_max, settings.retry_min * 2 ** min(self._failures, 30))
        self._failures += 1
        self._say("waiting", why)
        self._runtime.call_later(again * (0.5 + self._runtime.rng.random() / 2), self._again)

    def _again(self) -> None:
        if not self._stopped and self._client is None and self._broker.cluster.keeps_time():
            self._begin()
        elif self._client is None:
            self._say("idle", "")

    # While it is connected.

    async def _serve(self, client: Client) -> None:
        await self._end_deleted(client)
        self._failures = 0
        while client.over is None:
            self._woken = False
            await self._choose(client)
            if not await self._round(client) and not self._woken:
                await client.wait(self._until_woken)
        raise client.over

    def _until_woken(self, done: Callable[[None], None]) -> None:
        self._wake = done

    def _wake_up(self) -> None:
        self._woken = True
        if self._wake is not None:
            wake, self._wake = self._wake, None
            wake(None)

    async def _end_deleted(self, client: Client) -> None:
        """Queues that follow ours there, and are deleted here."""
        after, more = "", True
        while more:
            answer = await self._ask(client, steps.LIST, after=after)
            if "error" in answer:
                raise CoterieError(str(answer["error"]))
            vhost = self._broker.vhosts.get(self._settings.vhost)
            for name, incarnation in answer["queues"]:
                queue = None if vhost is None else vhost.queues.get(name)
                if queue is None:
                    await self._ask(client, steps.END, queue=name, incarnation=incarnation)
            more, after = answer["more"], answer["upto"]

    async def _ask(self, client: Client, do: str, **said: object) -> steps.Answer:
        """What this broker says of itself must be what the cluster says."""
        await client.wait(self._settled)
        return await client.ask(steps.encode(do, self._source, said))

    def _settled(self, done: Callable[[None], None]) -> None:
        store, cluster = self._broker.store, self._broker.cluster
        if cluster.immediate:
            store.when_synced(store.written(), lambda: done(None))
        else:
            cluster.when_held(lambda: done(None))

    def _wanted(self) -> dict[str, Queue]:
        vhost = self._broker.vhosts.get(self._settings.vhost)
        if vhost is None:
            return {}
        if self._looked != (vhost, vhost.wiring):
            self._looked = vhost, vhost.wiring
            self._chosen = {name: queue for name, queue in vhost.queues.items() if self._wants(queue)}
        return self._chosen

    def _wants(self, queue: Queue) -> bool:
        """What lives as long as its queue's messages may; and nothing that follows another one itself."""
        if not queue.spec.durable or queue.spec.exclusive or not queue.spec.replicated or queue.name.startswith("amq."):
            return False
        if queue.replica is not None and not queue.replica.promoted:
            return False
        policy = queue.vhost.policies.get(queue.policy or "")
        said = None if policy is None else policy.definition.get(REPLICATE)
        if isinstance(said, bool):
            return said
        return bool(self._settings.queues) and patterns.fits(self._settings.queues, queue.name)

    async def _choose(self, client: Client) -> None:
        """Begin with queues that are new, and end with those that are gone."""
        wanted = self._wanted()
        for name, feed in list(self._feeds.items()):
            if wanted.get(name) is not feed.queue or feed.broken:
                self._drop(feed)
                del self._feeds[name]
                if feed.broken:
                    log.warning("replication: a queue begins anew", queue=name, why=feed.broken)
                    self._refused[name] = feed.broken, self._runtime.now() + self._settings.retry_min
                elif feed.queue.deleted:
                    await self._ask(client, steps.END, queue=name, incarnation=feed.queue.incarnation)
        now = self._runtime.now()
        for name, queue in wanted.items():
            if name not in self._feeds and self._refused.get(name, ("", 0.0))[1] <= now:
                await self._begin_feed(client, queue)

    def _drop(self, feed: Feed) -> None:
        feed.stop()
        if not feed.queue.deleted:
            self._left_at[feed.queue.name] = feed.queue.incarnation, feed.confirmed

    async def _begin_feed(self, client: Client, queue: Queue) -> None:
        feed = Feed(queue, self._runtime.entropy(8).hex(), self._wake_up)
        answer = await self._ask(
            client, steps.BEGIN, queue=queue.name, incarnation=queue.incarnation, session=feed.session,
            auto_delete=queue.spec.auto_delete, arguments=records.pack(queue.spec.arguments),
        )  # fmt: skip
        if queue.deleted:
            return
        mark = answer.get("mark", 0)
        if "error" not in answer and mark >= queue.next_position:
            answer["error"] = (
                f"the other side has messages up to position {mark}, and this queue has given positions up to "
                f"{queue.next_position - 1}: was it restored from a backup? delete the queue there, and it is "
                "replicated anew"
            )
        if "error" in answer:
            self._refuse(queue.name, str(answer["error"]))
            return
        feed.begin(mark)
        self._feeds[queue.name] = feed
        self._left_at.pop(queue.name, None)
        self._refused.pop(queue.name, None)
        while not feed.broken:
            feed.compare(answer["present"])
            while feed.gone:
                gone = feed.gone.take(TOLD_RANGES)
                await client.wait(self._settled)
                await self._tell_gone(client, feed, gone)
            after = answer["upto"]
            if after >= mark:
                return
            answer = await self._ask(client, steps.PRESENT, queue=queue.name, session=feed.session, after=after)
            if "error" in answer:
                feed.broken = str(answer["error"])

    def _refuse(self, name: str, why: str) -> None:
        before = self._refused.get(name, ("", 0.0))[0]
        self._refused[name] = why, self._runtime.now() + self._settings.retry_max
        if why != before:
            log.error("replication: a queue is not replicated", to=self.destination.name, queue=name, why=why)

    # Messages.

    async def _round(self, client: Client) -> bool:
        """Something of each queue that has more, and one wait for all of it. False: nobody has."""
        portions: list[Portion] = []
        size = 0
        for name, feed in list(self._feeds.items()):
            if feed.broken or not feed.has_more:
                continue
            gone = feed.gone.take(TOLD_RANGES)
            ranges = feed.walk(self._settings.batch_bytes)
            upto = feed.sent
            found = await self._read(client, feed.queue, ranges)
            portions.append(Portion(feed, gone, upto, found))
            if name in self._feeds:
                self._feeds[name] = self._feeds.pop(name)  # others are before it next time
            size += sum(len(row.message.body) for row in found)
            if size >= self._settings.window * self._settings.batch_bytes:
                break
        if portions:
            await client.wait(self._settled)
        for portion in portions:
            await self._send(client, portion)
        return bool(portions)

    async def _send(self, client: Client, portion: Portion) -> None:
        """What has left, then what is next."""
        feed, upto = portion.feed, portion.upto
        if portion.gone:
            await self._tell_gone(client, feed, portion.gone)
        if portion.found:
            await client.room()
            positions = [row.position for row in portion.found]
            messages = [row.message for row in portion.found]
            said: dict[str, object] = {"queue": feed.queue.name, "session": feed.session}
            step = steps.encode(steps.ENQUEUE, self._source, said, positions, messages)
            feed.under_way += 1
            client.publish(step, lambda taken: self._confirmed(feed, upto, taken))
            self.messages += len(messages)
        else:
            feed.skip(upto)

    async def _tell_gone(self, client: Client, feed: Feed, gone: list[Range]) -> None:
        await client.room()
        said: dict[str, object] = {"queue": feed.queue.name, "session": feed.session, "ranges": gone}
        feed.under_way += 1
        client.publish(steps.encode(steps.REMOVE, self._source, said), lambda taken: self._confirmed(feed, 0, taken))
        self.removals += len(gone)

    async def _read(self, client: Client, queue: Queue, ranges: list[Positions]) -> list[Row]:
        if not ranges:
            return []

        def begin(done: Callable[[list[Row] | Exception], None]) -> None:
            queue.read_ranges(ranges, done)

        found = await client.wait(begin)
        if isinstance(found, Exception):
            raise CoterieError(f"queue '{queue.name}': its messages cannot be read: {found}")
        return found

    def _confirmed(self, feed: Feed, upto: int, taken: bool) -> None:
        if not taken:
            feed.broken = "the other side has not taken what was sent"
            self._wake_up()
        else:
            feed.settled(upto)

    # For operators.

    def status(self) -> LinkStatus:
        queues = [
            FollowerStatus(name, feed.broken or "running", feed.sent, feed.confirmed, feed.behind)
            for name, feed in self._feeds.items()
        ]
        for name, queue in self._wanted().items() if self.state != "idle" else ():
            if name not in self._feeds:
                incarnation, confirmed = self._left_at.get(name, (0, 0))
                confirmed = confirmed if incarnation == queue.incarnation else 0
                why = self._refused.get(name, (self.state, 0.0))[0]
                queues.append(FollowerStatus(name, why, confirmed, confirmed, behind(queue, confirmed)))
        blocked = "" if self._client is None else self._client.blocked
        why = self.why or (f"the other side takes nothing now: {blocked}" if blocked else "")
        return LinkStatus(
            self.destination.name, self._settings.vhost, self.state, why, self.since, self.messages, self.removals,
            tuple(sorted(queues, key=lambda each: each.queue)),
        )  # fmt: skip
