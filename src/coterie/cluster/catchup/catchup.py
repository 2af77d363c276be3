"""Catching up, as the broker does that is not in step: its update, the bodies of its messages, and the way back.

It has one update at a time. When it has the index, it applies what was kept meanwhile, and says so on the log: from
that place on it serves, while it asks for the bodies (backfill.py). If nobody is left who could bring the update to
its end, it goes back to the store that it had before (own_store.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from coterie.broker.broker import CLUSTER
from coterie.cluster.catchup.backfill import Backfill
from coterie.cluster.catchup.install import Installation
from coterie.cluster.catchup.own_store import content, load_messages
from coterie.cluster.catchup.snapshot import Json
from coterie.cluster.catchup.update import PATIENCE_MAX, Kept, Newcomer, Update
from coterie.cluster.chain import Link
from coterie.cluster.commit import Place
from coterie.cluster.membership import Era, Progress
from coterie.cluster.ready import Ready
from coterie.cluster.states import State
from coterie.cluster.wire import Kind
from coterie.group.members import Address
from coterie.logs import Log
from coterie.runtime.base import Runtime

if TYPE_CHECKING:
    from coterie.broker.broker import Broker
    from coterie.cluster.applier import Applier
    from coterie.cluster.peer_messages import PeerMessages
    from coterie.cluster.replica import Replica
    from coterie.cluster.settings import ClusterSettings
    from coterie.cluster.traced import ClusterTrace
    from coterie.cluster.turn import Turn
    from coterie.cluster.voids import Voids

log = Log(__name__)
Multicast = Callable[[Kind, dict[str, object]], None]
Replay = Callable[[Place, Address, memoryview], None]


class Catchup(Newcomer):
    """Of one broker."""

    def __init__(
        self, runtime: Runtime, settings: ClusterSettings, replica: Replica, turn: Turn, voids: Voids, broker: Broker,
        applier: Applier, messages: PeerMessages, traced: ClusterTrace | None,
        carry_out: Callable[[Ready], None], save: Callable[[], None], send_status: Callable[[], None],
        multicast: Multicast, replay: Replay,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._settings = settings
        self._replica = replica
        self._turn = turn
        self._voids = voids
        self._broker = broker
        self._applier = applier
        self._messages = messages
        self._traced = traced
        self._carry_out = carry_out
        self._save = save
        self._send_status = send_status
        self._multicast = multicast
        self._replay = replay
        self._update: Update | None = None
        self.backfill: Backfill | None = None
        """While it gets the bodies of its messages."""
        self._questions = count(1)
        """The numbers of those that ask for bodies, over all updates."""

    @property
    def awaited(self) -> bool:
        """Whether an update is."""
        return self._update is not None

    # What the replica decides.

    def await_update(self, if_none: bool = False) -> None:
        """Whatever came of another one is of no use."""
        if not if_none or self._update is None:
            self._update = Update(self, self._settings.kept_max)

    def drop_update(self) -> None:
        self._update = None

    def keep_from_here(self) -> None:
        if self._update is not None:
            self._update.from_here()

    def put_off(self) -> bool:
        return self._update is not None and self._update.put_off()

    def start_backfill(self) -> None:
        assert self.backfill is not None
        self.backfill.begin()

    def ask_again(self) -> None:
        if self.backfill is not None:
            self.backfill.view_changed()

    def stop_backfill(self) -> None:
        if self.backfill is not None:
            self.backfill.stop()
            self.backfill = None

    # What comes.

    def keeps(self, place: Place, sender: Address, kind: Kind, data: memoryview) -> bool:
        """Whether what the log has brought is kept for later, and not for now. Our own events are of no use then."""
        update = self._update
        if update is None or not update.keeps or sender == self._replica.us or kind is Kind.STATUS:
            return False
        update.keep(place, sender, bytes(data))
        return True

    def part(self, sender: Address, data: memoryview) -> None:
        """Of an update."""
        if self._update is not None and self._replica.state is not State.GOING_BACK:
            self._update.part(sender, data)

    def bodies(self, sender: Address, data: memoryview) -> None:
        if self.backfill is not None:
            self.backfill.bodies(data)

    # The update.

    def ask(self) -> None:
        self._send_status()

    def ask_later(self, update: Update) -> None:
        self._runtime.call_later(update.patience, self._again, update)

    def _again(self, update: Update) -> None:
        if self._update is update:
            self._update = Update(self, self._settings.kept_max, min(2 * update.patience, PATIENCE_MAX))
            self._send_status()

    def given_up(self, why: str = "") -> None:
        self._replica.given_up(why)
        if why:
            self.stop_backfill()

    def is_of_this_view(self, outline: Json) -> bool:
        return bool(outline["view"] == str(self._replica.view.id))

    def offered(self, source: Address, outline: Json) -> Installation:
        goal = Progress(outline["epoch"], outline["kept"] if "kept" in outline else outline["index"])
        era, voters = Era.from_json(outline["era"]), tuple(outline["voters"])
        self._carry_out(self._replica.offered(source, goal, era, outline["cluster"], voters))
        self._turn.time.begin(outline.get("time"))
        return Installation(self._broker, self._applier, outline, self._turn.now())

    def installed(self, outline: Json, installation: Installation, kept: Callable[[], Kept]) -> None:
        installation.finish()
        replica, cut = self._replica, Progress(outline["epoch"], outline["index"])
        backfill = self.backfill = self._make_backfill(installation, cut)
        if self._traced is not None:
            self._traced.updated()
        replica.installed(
            Link(cut, bytes.fromhex(outline.get("chain", ""))),
            bytes.fromhex(outline.get("aside", "")),
            outline.get("claims", []),
            Era.from_json(outline["era"]),
            outline["cluster"],
            tuple(outline["voters"]),
            [Address.parse(text) for text in outline["in_step"]],
            {Address.parse(text): Progress(epoch, index) for text, epoch, index in outline["catching_up"]},
            {Address.parse(text): Progress(epoch, index) for text, epoch, index in outline.get("lives", ())},
            outline["versions"],
        )
        self._turn.last_wall = outline["wall"]
        self._voids.install(outline.get("voids"))
        for place, sender, data in kept():
            self._replay(place, sender, memoryview(data))
        self._multicast(
            Kind.READY,
            {
                "view": str(replica.view.id), "speaks": replica.versions.newest, "cut": [cut.epoch, cut.index],
                "queues": backfill.unready, "cluster": replica.cluster,
            },
        )  # fmt: skip

    def _make_backfill(self, installation: Installation, cut: Progress) -> Backfill:
        return Backfill(
            self._runtime, self._replica, self._applier, self._broker.store, self._messages, installation.messages,
            cut, self._questions, self._settings.update_batch, self._multicast, self._save,
        )  # fmt: skip

    # The way back.

    def go_back(self) -> None:
        """To what it had. Once that is done, the others hear what this broker has."""
        self._broker.go_back(self._recovered)

    def _recovered(self, error: Exception | None) -> None:
        if error is not None:
            log.error("what this broker had cannot be read any more", error=error)
            self._replica.lost_way()
            self._send_status()
        else:
            self._runtime.spawn(self._load())

    async def _load(self) -> None:
        self._turn.last_wall = 0.0
        await self.load()
        self._send_status()

    async def load(self) -> None:
        """After recovery: a clustered broker has its messages in memory, and knows how far it had come."""
        replica, broker = self._replica, self._broker
        record = broker.records.pop((CLUSTER, "state"), None)
        replica.recovered(record)
        time = None if record is None else record.get("time")
        if isinstance(time, float):
            self._turn.time.begin(max(time, self._runtime.wall()))
        if not await load_messages(self._runtime, broker):
            replica.damaged = True
        replica.ended_well(not broker.crashed)
        if replica.damaged or replica.crashed:
            self._save()  # it is reported once, and must not be forgotten at the next start
        if replica.astray:
            broker.store.keep_aside()
        replica.loaded(content(broker, self._applier))
