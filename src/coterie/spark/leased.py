"""A stream of queues by a named lease: what the next batch is, and what may be retired.

An offset says, for each queue, up to which offset of the lease the stream has come; and whatever a batch needs to be
read again by anybody: the lease's name and id, the queue's incarnation, the place of the log. So batches are planned
from offsets alone. The first batch of a new query is empty: it writes the lease's name and where the stream begins to
the checkpoint before anything is taken, so that no crash leaves a lease that nobody knows of.

A batch is taken when the next one is planned: `latest` of a batch proves that everything before its start is written,
and `retire` is called with that. What the lease holds beyond an offset was taken by a driver that died before it wrote
its batch down; it is the next batch.

A lease belongs to one checkpoint: the first offset has an `owner`, which the lease's session names. Where lease and
checkpoint do not agree (either was restored from an older copy, or an operator ended the lease), that is a DataLoss; a
query that accepts losses goes on from the first offset that the lease still holds.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from coterie.errors import UserError
from coterie.logs import Log
from coterie.spark.source_options import EARLIEST, LATEST, SourceOptions
from coterie.streams.client import Client, Conflict, Gone, Lease, NotFound, Tail

PREFIX: Final = "spark-"
_USES: Final = 8
"""How often a lease is renewed in the time after which it would end."""
_NODES_SECONDS: Final = 10.0
"""How long a list of brokers is good for."""
_NAMED_AFTER: Final = 60
"""Characters of a lease's name that say what it is for."""
_log = Log(__name__)


class Place(TypedDict, total=False):
    """How far a stream has come in one queue."""

    at: str
    id: int
    incarnation: int
    offset: int
    since: int
    """Where this batch begins, if that is not where the one before it ended."""


Offset = dict[str, Any]
"""`lease`, its name; `owner`, which checkpoint it belongs to; `first`, positions by queue before which nothing is
taken; `queues`, a Place for each."""


@dataclass(frozen=True)
class Range:
    """Some of a batch."""

    number: int
    queue: str
    lease: str
    id: int
    incarnation: int
    at: str
    first: int
    stop: int

    def leased(self, vhost: str) -> Lease:
        """As much of the lease as a reader needs."""
        return Lease(
            vhost, self.queue, self.incarnation, self.lease, self.id, "", "", 0, self.first, self.stop, 0, 0, None,
            None, self.at,
        )  # fmt: skip


class DataLoss(UserError):
    """Messages of the stream are gone that nobody has seen."""


class Leased:
    """One start of one query. Nothing is asked before the first call."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._run = uuid.uuid4().hex
        self._client: Client | None = None
        self._leases: dict[str, Lease | None] = {}
        """By queue, those that this session has taken over; None: there is none."""
        self._used: dict[int, float] = {}
        """By the id of a lease: when it was renewed."""
        self._nodes: tuple[str, ...] = ()
        self._nodes_until = -1.0
        self._last = time.monotonic()
        """When a batch with rows was planned, or this run began."""
        self._idle = False
        """The latest plan had nothing, and no batch of the query has been written since."""
        self.report: Offset | None = None
        """As of the latest plan: where the stream would be if it had read everything."""
        self._upto: dict[str, int] | None = None
        """With Trigger.AvailableNow: the last position of each queue."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_leases": {}}

    @property
    def _broker(self) -> Client:
        if self._client is None:
            self._client = self._options.client()
        return self._client

    def close(self) -> None:
        """Connections end; the lease does not."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def nodes(self) -> tuple[str, ...]:
        """Whom readers may ask; not older than some seconds."""
        now = time.monotonic()
        if self._nodes_until < now:
            self._nodes, self._nodes_until = addresses(self._broker), now + _NODES_SECONDS
        return self._nodes

    def available_now(self) -> None:
        """From now on there is nothing but what there is now."""
        self._upto = {queue: tail.next - 1 for queue, tail in self._tails().items()}

    def _tails(self, wait: float = 0.0, ready: int = 1) -> dict[str, Tail]:
        options = self._options
        found = self._broker.tails(options.queues, options.pattern, wait=wait, ready=max(ready, 1))
        return {tail.name: tail for tail in sorted(found, key=lambda tail: tail.name)}

    # The next batch.

    def latest(self, start: Offset, rows: int | None, size: int | None, least: int = 0) -> Offset:
        """Where the batch ends that begins at `start`, with so many rows or bytes at most. `least`: of rows; with fewer
        there is no batch, until it has been waited for them for long enough."""
        self.retire(start)
        tails = self._tails(self._wait(start, least), least)
        if not start.get("lease"):
            return self._begin(tails)
        places: dict[str, Place] = dict(start["queues"])
        self._check(start, places, tails)
        self._keep(start)
        self.retire({**start, "queues": places})
        wants = {queue: (self._held(places, queue), tail) for queue, tail in tails.items()}
        wants = {queue: want for queue, want in wants.items() if want[0] or self._may_take(want[1])}
        ready = sum(held + tail.ready for held, tail in wants.values())
        if ready < least and self._upto is None and time.monotonic() < self._last + self._options.delay:
            wants = {}
        before = {queue: 0 if lease is None else lease.next for queue, lease in self._leases.items()}
        shares = _shares(rows, [held + tail.ready for held, tail in wants.values()])
        parts = _shares(size, [self._held_bytes(queue) + tail.ready_bytes for queue, (_, tail) in wants.items()])
        for (queue, (held, tail)), share, part in zip(wants.items(), shares, parts, strict=True):
            if share == 0 or part == 0:
                continue
            found = self._next(start, places.get(queue), tail, held, share, part)
            if found is not None:
                places[queue] = found
                self._last = time.monotonic()
        self._idle = places == start["queues"]
        end = {**start, "queues": {queue: places[queue] for queue in sorted(places)}}
        self.report = self._latest(end, tails, before)
        return end

    def _wait(self, start: Offset, least: int) -> float:
        """How long a broker may wait for messages before it answers. Not at all if somebody else may have some for
        this query: another stream of it, that has just had a batch; or a lease that holds some."""
        if not self._idle or self._upto is not None:
            return 0.0
        places: dict[str, Place] = start["queues"]
        if any(self._held(places, queue) for queue in self._leases):
            return 0.0
        left = self._last + self._options.delay - time.monotonic() if least else self._options.idle_wait
        return max(0.0, min(left, self._options.idle_wait))

    def _latest(self, end: Offset, tails: dict[str, Tail], before: dict[str, int]) -> Offset:
        """Where the stream would be if it had read all that there is: offsets as they would be, and how far it lags.
        `before`: what each lease would have given next before this batch was taken."""
        places: dict[str, Place] = end["queues"]
        found: dict[str, dict[str, int]] = {}
        for queue, tail in tails.items():
            lease = self._leases.get(queue)
            taken = 0 if lease is None else lease.next - before.get(queue, 0)
            ahead = max(0, tail.next - end["first"].get(queue, 0))  # the stream begins behind what is before it
            lag = min(max(0, tail.ready - taken), ahead) + self._held(places, queue)
            offset = places[queue]["offset"] if queue in places else 0
            found[queue] = {"lag": lag, "offset": offset + lag, "position": tail.next - 1}
        return {"lag": sum(each["lag"] for each in found.values()), "lease": end["lease"], "queues": found}

    def _begin(self, tails: dict[str, Tail]) -> Offset:
        """The offset of the first, empty batch."""
        options = self._options
        missing = [name for name in options.queues if name not in tails]
        if missing:
            raise UserError(f"no queue '{missing[0]}' in vhost '{options.vhost}'")
        first: dict[str, int] = {}
        if options.starting == LATEST:
            first = {queue: tail.next for queue, tail in tails.items()}
        elif isinstance(options.starting, dict):
            first = {queue: options.starting[queue] for queue in sorted(options.starting)}
            check_first(first, tails, options.fail_on_data_loss)
        name = options.lease or _name_after(options)
        begun: Offset = {"lease": name, "owner": uuid.uuid4().hex, "first": first, "queues": {}}
        if options.lease:
            self._adopt(begun, tails)
        self.report = self._latest(begun, tails, {})
        return begun

    def _adopt(self, begun: Offset, tails: dict[str, Tail]) -> None:
        """A lease of that name that is nobody's, as the tools make them, is read from its first offset on."""
        for queue, tail in tails.items():
            lease = self._broker.lease(queue, begun["lease"])
            if lease is not None and lease.incarnation == tail.incarnation:
                self._check_owner(begun, lease)
                begun["queues"][queue] = _anew(lease)

    def _may_take(self, tail: Tail) -> bool:
        if not tail.ready:
            return False
        return self._upto is None or tail.first <= self._upto.get(tail.name, -1)

    def _held(self, places: dict[str, Place], queue: str) -> int:
        """How many offsets the lease has beyond the checkpoint's."""
        lease = self._leases.get(queue)
        if lease is None:
            return 0
        place = places.get(queue)
        return lease.next - (0 if place is None else place["offset"])

    def _held_bytes(self, queue: str) -> int:
        lease = self._leases.get(queue)
        return 0 if lease is None else lease.bytes

    def _next(
        self, start: Offset, place: Place | None, tail: Tail, held: int, rows: int | None, size: int | None
    ) -> Place | None:
        queue, lease = tail.name, self._leases.get(tail.name)
        offset = 0 if place is None else place["offset"]
        if held:
            assert lease is not None
            stop = lease.next if rows is None else min(lease.next, offset + rows)
            if size is not None:
                stop = min(stop, self._broker.fits(lease, offset, size))
        else:
            last = None if self._upto is None else self._upto[queue]
            after = 0 if lease is None else lease.next
            try:
                lease = self._broker.acquire(
                    queue, start["lease"], self._session(start), rows, size, after=after,
                    first=start["first"].get(queue, 0), last=last, incarnation=tail.incarnation,
                    id=None if lease is None else lease.id,
                )  # fmt: skip
            except Conflict:
                raise self._taken_over(start, queue) from None
            self._leases[queue] = lease
            stop = lease.next
        if stop == offset:
            return None
        found = _place(lease, stop)
        if place is not None and place is not start["queues"].get(queue):
            found["since"] = offset  # `_check` has begun anew
        return found

    # What must be there.

    def _check(self, start: Offset, places: dict[str, Place], tails: dict[str, Tail]) -> None:
        """Take over the leases that there are. What does not agree is an error, or begins anew in `places`."""
        name = start["lease"]
        for queue, tail in tails.items():
            if queue not in self._leases:
                self._leases[queue] = self._take_over(start, queue, tail)
        for queue in sorted({*places, *tails}):
            place, found, lease = places.get(queue), tails.get(queue), self._leases.get(queue)
            what = f"the lease '{name}' of queue '{queue}'"
            if place is None:
                if lease is None or lease.first == 0:
                    continue
                self._lost(
                    f"the checkpoint is older than its lease: {what} has let go of offsets 0 to {lease.first - 1}, "
                    "which the checkpoint does not know of"
                )
            elif found is None:
                self._lost(f"queue '{queue}' was deleted")
            elif found.incarnation != place["incarnation"]:
                self._lost(f"queue '{queue}' was deleted and declared anew")
            elif lease is None or lease.id != place["id"]:
                self._lost(f"{what} was ended, and what it held went to others")
            elif lease.next < place["offset"]:
                self._lost(
                    f"{what} is behind its checkpoint, at offset {lease.next} instead of {place['offset']}: the "
                    "brokers were restored from older data, and messages that were written would come again"
                )
            elif lease.first > place["offset"]:
                self._lost(
                    f"the checkpoint is older than its lease: {what} has let go of offsets {place['offset']} to "
                    f"{lease.first - 1}, which the checkpoint has not come to"
                )
            else:
                continue
            places.pop(queue, None)
            if found is not None and lease is not None:
                places[queue] = _anew(lease)

    def _take_over(self, start: Offset, queue: str, tail: Tail) -> Lease | None:
        lease = self._broker.lease(queue, start["lease"])
        if lease is None or lease.incarnation != tail.incarnation:
            return None
        self._check_owner(start, lease)
        try:
            return self._broker.take(lease, self._session(start))
        except (Gone, NotFound):
            return None

    def _check_owner(self, start: Offset, lease: Lease) -> None:
        """A lease is of one checkpoint: two that read through one lease would each miss what the other has got, or
        write it twice."""
        owner = _owner_of(lease.session)
        if owner is not None and owner != _owner(start):
            raise UserError(
                f"the lease '{lease.name}' of queue '{lease.queue}' belongs to another checkpoint: choose another "
                f"leaseName; or, if that checkpoint is gone for good, end the lease: coterie leases release "
                f"'{lease.name}' --queue '{lease.queue}' makes what it holds ready again"
            )

    def _session(self, start: Offset) -> str:
        return f"spark {_owner(start)} {self._run}"

    def _taken_over(self, start: Offset, queue: str) -> UserError:
        """What it means that another session has the lease."""
        lease = self._broker.lease(queue, start["lease"])
        if lease is not None:
            self._check_owner(start, lease)
        return UserError(
            f"the lease '{start['lease']}' of queue '{queue}' was taken over: another run of this query is up"
        )

    def _keep(self, start: Offset) -> None:
        """A lease that is not used ends some day; a stream that waits for messages still needs it."""
        now = time.monotonic()
        for queue, lease in self._leases.items():
            if lease is None or not lease.expires_after:
                continue
            if self._used.setdefault(lease.id, now) > now - lease.expires_after / _USES:
                continue
            self._used[lease.id] = now
            try:
                self._leases[queue] = self._broker.renew(lease)
            except Conflict:
                raise self._taken_over(start, queue) from None

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what}: set the option failOnDataLoss to false to go on with what there is")
        _log.warning(f"{what}: the stream goes on with what there is")

    # What is written.

    def commit(self, offset: Offset) -> None:
        """A batch of the query is written, perhaps with rows of another stream alone."""
        self._idle = False
        self.retire(offset)

    def retire(self, offset: Offset) -> None:
        """Everything before it is written for good."""
        for queue, place in offset.get("queues", {}).items():
            lease = self._leases.get(queue)
            if lease is None or lease.id != place["id"]:
                continue
            if lease.first < place["offset"] <= lease.next:
                try:
                    done = self._broker.retire(lease, place["offset"])
                except Conflict:
                    raise self._taken_over(offset, queue) from None
                self._leases[queue] = done

    # Parts of a batch.

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """What is between two offsets, cut for several readers. The same for the same offsets."""
        before: dict[str, Place] = start.get("queues", {})
        spans: list[tuple[str, Place, int]] = []
        for queue, place in end.get("queues", {}).items():
            known = before.get(queue)
            if known == place:
                continue
            same = known is not None and known["id"] == place["id"]
            first = known["offset"] if known is not None and same else 0
            first = place.get("since", first)
            if first < place["offset"]:
                spans.append((queue, place, first))
        total = sum(place["offset"] - first for _, place, first in spans)
        found: list[Range] = []
        for queue, place, first in spans:
            for begin, stop in cuts(first, place["offset"], total, self._options):
                found.append(
                    Range(len(found), queue, end["lease"], place["id"], place["incarnation"], place["at"], begin, stop)
                )
        return found


def _place(lease: Lease, offset: int) -> Place:
    return {"at": lease.at, "id": lease.id, "incarnation": lease.incarnation, "offset": offset}


def _anew(lease: Lease) -> Place:
    """An empty batch, behind which the stream begins with what the lease still holds."""
    return {**_place(lease, lease.first), "since": lease.first}


def _owner(start: Offset) -> str:
    """Checkpoints of versions without owners go by their lease's name, which was mostly made for them alone."""
    return str(start.get("owner") or start["lease"].replace(" ", "_"))


def _owner_of(session: str) -> str | None:
    """None: the session is not that of a checkpoint."""
    words = session.split(" ")
    return words[1] if len(words) == 3 and words[0] == "spark" else None


def _name_after(options: SourceOptions) -> str:
    """What a lease is called that has no name: after the query, or what it reads, and like no other."""
    told = options.query or "-".join(options.queues) or options.pattern or ""
    return f"{PREFIX}{re.sub(r'[^A-Za-z0-9._-]+', '-', told)[:_NAMED_AFTER].strip('-')}-{uuid.uuid4().hex[:12]}"


def addresses(client: Client) -> tuple[str, ...]:
    """Of all brokers that are in step, as far as they are known."""
    return tuple(node.url for node in client.nodes() if node.url is not None)


def check_first(first: dict[str, int], tails: dict[str, Tail], fail: bool) -> None:
    """Where positions are asked for, they must be there. Raises UserError."""
    for queue, position in first.items():
        tail = tails.get(queue)
        if tail is None:
            raise UserError(f"option startingPositions: '{queue}' is none of the queues that are read")
        if fail and 0 < position < tail.first:
            raise DataLoss(
                f"positions {position} to {tail.first - 1} of queue '{queue}' are gone: begin at {tail.first}, or at "
                f"'{EARLIEST}', or set the option failOnDataLoss to false"
            )


def cuts(first: int, stop: int, total: int, options: SourceOptions) -> Iterator[tuple[int, int]]:
    """A range in parts that are about equal: `total` is that of all ranges."""
    count = stop - first
    most = options.max_rows_per_partition
    parts = max(-(-count // most), -(-options.min_partitions * count // max(total, 1)), 1)
    parts = min(parts, count)
    for part in range(parts):
        yield first + count * part // parts, first + count * (part + 1) // parts


def _shares(limit: int | None, wanted: list[int]) -> list[int | None]:
    """How much of a limit each gets: in proportion to what it wants, and each something as long as there is any."""
    if limit is None:
        return [None] * len(wanted)
    total, left = max(sum(wanted), 1), limit
    found: list[int | None] = []
    for want in wanted:
        share = min(left, max(1, limit * want // total))
        found.append(share)
        left -= share
    return found
