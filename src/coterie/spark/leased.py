"""A stream of queues by a named lease: what the next batch is, and what may be retired.

An offset says, for each queue, up to which offset of the lease the stream has come; and whatever a batch needs to be
read again by anybody: the lease's name and id, the queue's incarnation, the place of the log. So batches are planned
from offsets alone. The first batch of a new query is empty: it writes the lease's name and where the stream begins to
the checkpoint before anything is taken, so that no crash leaves a lease that nobody knows of.

A batch is taken when the next one is planned: `latest` of a batch proves that everything before its start is written,
and `retire` is called with that. What the lease holds beyond an offset was taken by a driver that died before it wrote
its batch down; it is the next batch.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypedDict

from coterie.errors import UserError
from coterie.spark.source_options import EARLIEST, LATEST, SourceOptions
from coterie.streams.client import Client, Conflict, Gone, Lease, NotFound, Tail

PREFIX: Final = "spark-"


class Place(TypedDict, total=False):
    """How far a stream has come in one queue."""

    at: str
    id: int
    incarnation: int
    offset: int
    since: int
    """Where a stream begins in a lease that it found."""


Offset = dict[str, Any]
"""`lease`, its name; `first`, positions by queue before which nothing is taken; `queues`, a Place for each."""


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
        self._session = f"spark-{uuid.uuid4()}"
        self._client: Client | None = None
        self._leases: dict[str, Lease | None] = {}
        """By queue, those that this session has taken over; None: there is none."""
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

    def available_now(self) -> None:
        """From now on there is nothing but what there is now."""
        self._upto = {queue: tail.next - 1 for queue, tail in self._tails().items()}

    def _tails(self) -> dict[str, Tail]:
        options = self._options
        found = self._broker.tails(options.queues, options.pattern)
        return {tail.name: tail for tail in sorted(found, key=lambda tail: tail.name)}

    # The next batch.

    def latest(self, start: Offset, rows: int | None, size: int | None) -> Offset:
        """Where the batch ends that begins at `start`, with so many rows or bytes at most."""
        tails = self._tails()
        if not start.get("lease"):
            return self._begin(tails)
        places: dict[str, Place] = dict(start["queues"])
        self._check(start["lease"], places, tails)
        self.retire({**start, "queues": places})
        wants = {queue: (self._held(places, queue), tail) for queue, tail in tails.items()}
        wants = {queue: want for queue, want in wants.items() if want[0] or self._may_take(*want)}
        shares = _shares(rows, [held + tail.ready for held, tail in wants.values()])
        parts = _shares(size, [tail.ready_bytes for _, tail in wants.values()])
        for (queue, (held, tail)), share, part in zip(wants.items(), shares, parts, strict=True):
            if share == 0 or part == 0:
                continue
            found = self._next(start, places.get(queue), tail, held, share, part)
            if found is not None:
                places[queue] = found
        return {**start, "queues": {queue: places[queue] for queue in sorted(places)}}

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
        name = options.lease or f"{PREFIX}{uuid.uuid4().hex[:16]}"
        return {"lease": name, "first": first, "queues": {}}

    def _may_take(self, held: int, tail: Tail) -> bool:
        if not tail.ready:
            return False
        return self._upto is None or tail.first <= self._upto.get(tail.name, -1)

    def _held(self, places: dict[str, Place], queue: str) -> int:
        """What the lease has beyond the offset."""
        lease = self._leases.get(queue)
        if lease is None:
            return 0
        place = places.get(queue)
        return lease.next - (lease.first if place is None else place["offset"])

    def _next(
        self, start: Offset, place: Place | None, tail: Tail, held: int, rows: int | None, size: int | None
    ) -> Place | None:
        queue, lease = tail.name, self._leases.get(tail.name)
        since = 0 if lease is None or place is not None else lease.first
        offset = since if place is None else place["offset"]
        if held:
            assert lease is not None
            stop = lease.next if rows is None else min(lease.next, offset + rows)
        else:
            last = None if self._upto is None else self._upto[queue]
            after = 0 if lease is None else lease.next
            lease = self._broker.acquire(
                queue, start["lease"], self._session, rows, size, after=after, first=start["first"].get(queue, 0),
                last=last, incarnation=tail.incarnation, id=None if lease is None else lease.id,
            )  # fmt: skip
            self._leases[queue] = lease
            stop = lease.next
        if stop == offset:
            return None
        found: Place = {"at": lease.at, "id": lease.id, "incarnation": tail.incarnation, "offset": stop}
        if since:
            found["since"] = since
        return found

    # What must be there.

    def _check(self, name: str, places: dict[str, Place], tails: dict[str, Tail]) -> None:
        """Take over the leases that there are. What is gone is an error, or leaves the offset."""
        for queue, tail in tails.items():
            if queue not in self._leases:
                self._leases[queue] = self._take_over(queue, name, tail)
        for queue, place in [*places.items()]:
            found, lease = tails.get(queue), self._leases.get(queue)
            if found is None:
                self._lost(f"queue '{queue}' was deleted")
            elif found.incarnation != place["incarnation"]:
                self._lost(f"queue '{queue}' was deleted and declared anew")
            elif lease is None or lease.id != place["id"]:
                self._lost(f"the lease '{name}' of queue '{queue}' was ended, and what it held went to others")
            else:
                continue
            del places[queue]

    def _take_over(self, queue: str, name: str, tail: Tail) -> Lease | None:
        lease = self._broker.lease(queue, name)
        if lease is None or lease.incarnation != tail.incarnation:
            return None
        try:
            return self._broker.take(lease, self._session)
        except (Gone, NotFound):
            return None

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{what}: set the option failOnDataLoss to false to go on with what there is")

    # What is written.

    def retire(self, offset: Offset) -> None:
        """Everything before it is written for good."""
        for queue, place in offset.get("queues", {}).items():
            lease = self._leases.get(queue)
            if lease is not None and lease.id == place["id"] and lease.first < place["offset"]:
                try:
                    done = self._broker.retire(lease, place["offset"])
                except Conflict:
                    raise UserError(
                        f"the lease '{lease.name}' of queue '{queue}' was taken over: another run of this query is up"
                    ) from None
                self._leases[queue] = replace(done, session=self._session)

    # Parts of a batch.

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """What is between two offsets, cut for several readers. The same for the same offsets."""
        before: dict[str, Place] = start.get("queues", {})
        spans: list[tuple[str, Place, int]] = []
        for queue, place in end.get("queues", {}).items():
            known = before.get(queue)
            same = known is not None and known["id"] == place["id"]
            first = known["offset"] if known is not None and same else place.get("since", 0)
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
