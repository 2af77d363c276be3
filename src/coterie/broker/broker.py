"""The broker: vhosts, the store under them, and the alarms that stop publishers.

`start` recovers what the store has kept; from then on front doors use `vhost(name)`. While an alarm is on (the disk
is full, there is too much in memory), publishers are to be blocked, and consumers go on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from coterie.amqp.wire.codes import NOT_ALLOWED, PRECONDITION_FAILED
from coterie.auditlog.log import AMQP, REFUSED, AuditLog
from coterie.broker import records, validation
from coterie.broker.cluster import Cluster, NullCluster
from coterie.broker.counters import Churn, Counters
from coterie.broker.journal import Journal, restore_attributes, restore_key
from coterie.broker.memory import ENTRY, MemoryWatch
from coterie.broker.observer import QueueObserver
from coterie.broker.recovery import rebuild
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage import NullStore, Record, Recovered, Store
from coterie.broker.traced import BrokerTrace
from coterie.broker.vhost import Vhost
from coterie.errors import ProtocolError
from coterie.logs import Log
from coterie.runtime.base import Runtime, Timer

DEFAULT_VHOST: Final = "/"
DISK: Final = "disk"
MEMORY: Final = "memory"
CLUSTER: Final = "cluster"
"""The kind of the record in which a clustered broker keeps how far it has come: it is its own, and nobody else's."""
log = Log(__name__)


class Broker:
    """One broker."""

    def __init__(
        self,
        runtime: Runtime,
        settings: BrokerSettings | None = None,
        store: Store | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        self.runtime = runtime
        self.settings = settings or BrokerSettings()
        self.store = store or NullStore()
        self.journal = self.store.journal = Journal(self.store)
        self.cluster = cluster or NullCluster()
        traced = runtime.trace.on and self.cluster.immediate  # a cluster has a trace of its own
        self.traced = BrokerTrace(runtime.trace, self.store) if traced else None
        self.vhosts: dict[str, Vhost] = {}
        self.damaged = False
        """Some of what the store had is lost."""
        self.crashed = False
        """The life before did not end properly."""
        self.records: dict[tuple[str, str], Record] = {}
        """Records of kinds that are not the broker's own, as they were recovered: users and the like."""
        self.begins_with: dict[tuple[str, str], Record] = {}
        """Those of them that every new broker has."""
        self.name = ""
        """In a cluster, for others; nothing: it stands alone."""
        self.alarms: dict[str, bool] = {DISK: False, MEMORY: False}
        self.alarms_elsewhere: dict[str, tuple[str, ...]] = {}
        """In a cluster, those of other brokers, by name: they count here too."""
        self.audit = AuditLog()
        """Who did what; off, unless the node has one."""
        self.memory_watch = MemoryWatch(runtime.memory())
        self.blocked = ""
        """Why publishers are to wait; nothing if they are not."""
        self.record_changed: list[Callable[[str, str, Record | None], None]] = []
        """Called with kind, key and the record, or None if it is gone."""
        self.observers: list[QueueObserver] = []
        """Of every queue that is made from now on, in vhosts that are made from now on."""
        self.deleting_vhost: list[Callable[[Vhost], None]] = []
        """Called before a vhost ends: its connections are to be closed."""
        self.churn_gone = Churn()
        self.gone = Counters()
        """Of vhosts that were deleted."""
        self._alarm_listeners: list[Callable[[str], None]] = []
        self._looking: Timer | None = None
        self._start_number = 0
        self._queues_made = 0
        self.cluster.start(runtime)

    # Life.

    def start(self, done: Callable[[Exception | None], None]) -> None:
        """Recover, then `done`; with the exception if nothing can be recovered."""

        def recovered(found: Recovered | Exception) -> None:
            if isinstance(found, Exception):
                done(found)
                return
            if self.traced is not None:
                self.traced.started()
            self._rebuild(found)
            self._look()
            done(None)

        self.store.alarm = self._disk_alarm
        self.store.recover(recovered)

    def _rebuild(self, found: Recovered) -> None:
        self._start_number = found.incarnation or int(self.runtime.wall())
        for text in found.damage:
            log.warning("the store is damaged", what=text)
        self.damaged = bool(found.damage)
        self.crashed = not found.clean
        self.records = rebuild(self, found)
        if DEFAULT_VHOST not in self.vhosts:
            self.make_vhost(DEFAULT_VHOST)

    def go_back(self, done: Callable[[Exception | None], None]) -> None:
        """What took the place of what this broker had (`wipe`) will never be whole: it has the old again, as after a
        restart."""

        def recovered(found: Recovered | Exception) -> None:
            if isinstance(found, Exception):
                done(found)
                return
            self._rebuild(found)
            for (kind, key), record in [*self.records.items()]:
                for listener in self.record_changed:
                    listener(kind, key, record)
            done(None)

        self.store.go_back(self._clear, recovered)

    def stop(self, done: Callable[[], None]) -> None:
        """Timers end, and the store is closed. Front doors are closed before."""
        self.stop_timers()
        if self.traced is None:
            self.store.close(done)
        else:
            self.traced.inventory(self.vhosts.values())
            self.store.close(self.traced.stopped(done))

    def stop_timers(self) -> None:
        """Nothing happens by itself any more."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                queue.stop()

    # Vhosts.

    def vhost(self, name: str) -> Vhost:
        """Raises ProtocolError 530, as a client gets it that opens a connection."""
        vhost = self.vhosts.get(name)
        if vhost is None:
            raise ProtocolError(NOT_ALLOWED, f"vhost {name} not found")
        return vhost

    def add_vhost(self, name: str, done: Callable[[Vhost | ProtocolError], None]) -> None:
        """It may be there already."""
        if name in self.vhosts:
            done(self.vhosts[name])
        elif len(self.vhosts) >= self.settings.vhosts_max:
            done(ProtocolError(NOT_ALLOWED, f"cannot add vhost '{name}': there are too many (vhosts_max)"))
        else:
            self.cluster.administer(self, {"do": "add vhost", "name": name}, done)

    def delete_vhost(self, name: str, done: Callable[[ProtocolError | None], None]) -> None:
        if name not in self.vhosts:
            done(ProtocolError(NOT_ALLOWED, f"vhost {name} not found"))
        else:
            self.cluster.administer(self, {"do": "delete vhost", "name": name}, done)

    def keep_record(
        self,
        kind: str,
        key: str,
        record: Record | None,
        was: Record | None,
        done: Callable[[bool | ProtocolError], None],
    ) -> None:
        """Of a kind that is not the broker's own: `record_changed` listens; None deletes it. False: it is not what it
        `was` any more, so nothing has changed."""
        said: dict[str, object] = {"do": "record", "kind": kind, "key": key, "record": record, "was": was}
        self.cluster.administer(self, said, done)

    def apply_administration(self, said: dict[str, object]) -> object:
        """What all brokers of a cluster decide alike."""
        if said["do"] == "add vhost":
            wrong = validation.name(said["name"])
            if wrong:
                return ProtocolError(PRECONDITION_FAILED, f"invalid name of a vhost: {wrong}")
            return self.keep_vhost(str(said["name"]))
        if said["do"] == "delete vhost":
            return self._end_vhost(str(said["name"]))
        kind, key, record = str(said["kind"]), str(said["key"]), said["record"]
        assert record is None or isinstance(record, dict)
        if "was" in said and not _same(self.records.get((kind, key)), said["was"]):
            return False
        self._put_record(kind, key, record)
        return True

    def keep_vhost(self, name: str) -> Vhost:
        """It may be there already."""
        if name in self.vhosts:
            return self.vhosts[name]
        if self.journal.on:
            self.journal.note(restore_key, self.vhosts, name, None)
        self._save(records.VHOST, records.key_of(name), {})
        return self.make_vhost(name)

    def _end_vhost(self, name: str) -> ProtocolError | None:
        vhost = self.vhosts.get(name)
        if vhost is None:
            return ProtocolError(NOT_ALLOWED, f"vhost {name} not found")
        for listener in self.deleting_vhost:
            listener(vhost)
        vhost.clear()
        if self.journal.on:
            self.journal.note(restore_key, self.vhosts, name, vhost)
            self.journal.note(restore_attributes, self.gone, *self.gone.image())
        del self.vhosts[name]
        self.churn_gone.add(vhost.churn)
        self.gone.add(vhost.gone)
        self._save(records.VHOST, records.key_of(name), None)
        return None

    @property
    def churn(self) -> Churn:
        """Of all vhosts, also those that were deleted."""
        total = Churn()
        total.add(self.churn_gone)
        for vhost in self.vhosts.values():
            total.add(vhost.churn)
        return total

    # Records of others: users.

    def _put_record(self, kind: str, key: str, record: Record | None) -> None:
        if self.journal.on:
            self.journal.note(restore_key, self.records, (kind, key), self.records.get((kind, key)))
        if record is None:
            self.records.pop((kind, key), None)
        else:
            self.records[kind, key] = record
        self._save(kind, key, record)
        for listener in self.record_changed:
            listener(kind, key, record)

    def _save(self, kind: str, key: str, record: Record | None) -> None:
        if self.journal.effects.on:
            self.journal.effects.record(kind, key, record)
        self.store.save(kind, key, record)

    def kept_records(self) -> list[tuple[str, str, Record]]:
        """All of them, for a broker that is to have the same."""
        return [(kind, key, record) for (kind, key), record in self.records.items() if kind != CLUSTER]

    def put_records(self, given: Sequence[tuple[str, str, Record]]) -> None:
        for kind, key, record in given:
            self._put_record(kind, key, record)

    @property
    def empty(self) -> bool:
        """Nothing but what every broker begins with."""
        return (
            len(self.vhosts) <= 1
            and all(vhost.empty for vhost in self.vhosts.values())
            and all(_same(record, self.begins_with.get((kind, key))) for kind, key, record in self.kept_records())
        )

    def wipe(self) -> None:
        """Everything goes: another broker's state takes its place. The store keeps what it has until that is whole."""
        self.store.renew(self._clear)
        self.make_vhost(DEFAULT_VHOST)

    def _clear(self) -> None:
        for name in list(self.vhosts):
            self._end_vhost(name)
        for kind, key in [key for key in self.records if key[0] != CLUSTER]:
            self._put_record(kind, key, None)

    def make_vhost(self, name: str) -> Vhost:
        vhost = Vhost(name, self.runtime, self.settings, self.store, self.cluster, self._next_incarnation)
        if self.traced is not None:
            vhost.traced = self.traced
            vhost.observers.append(self.traced)
        vhost.observers += self.observers
        vhost.refused_step = partial(self._refused_step, name)
        vhost.exhausted = lambda: self.memory_watch.exhausted
        self.vhosts[name] = vhost
        return vhost

    def _refused_step(self, vhost: str, user: str, why: str) -> None:
        self.audit.record("access.refused", user, "", AMQP, REFUSED, why, of_vhost=vhost)

    def _next_incarnation(self) -> int:
        """Never the same, also not after a restart: the number of this start, then a count."""
        self._queues_made += 1
        return (self._start_number << 32) + self._queues_made

    # Alarms.

    @property
    def alarms_on(self) -> tuple[str, ...]:
        """Those of this broker."""
        return tuple(name for name, on in self.alarms.items() if on)

    @property
    def shown_alarms(self) -> list[str]:
        """Of all brokers that count, and whose they are."""
        elsewhere = sorted(self.alarms_elsewhere.items())
        return [*self.alarms_on, *(f"{alarm} at {name}" for name, alarms in elsewhere for alarm in alarms)]

    def watch_alarms(self, listener: Callable[[str], None]) -> None:
        """It is called with `blocked` whenever that changes."""
        self._alarm_listeners.append(listener)

    def unwatch_alarms(self, listener: Callable[[str], None]) -> None:
        self._alarm_listeners.remove(listener)

    def set_alarm(self, name: str, on: bool) -> None:
        if self.alarms.get(name, False) == on:
            return
        self.alarms[name] = on
        tell = log.warning if name in (DISK, MEMORY) else log.info  # a cluster says by itself why it does not serve
        tell("alarm" if on else "alarm is over", what=name)
        self._alarms_changed()

    def set_alarms_of(self, name: str, alarms: Sequence[str]) -> None:
        """Another broker of the cluster has these, and no others."""
        before = self.alarms_elsewhere.pop(name, ())
        if alarms:
            self.alarms_elsewhere[name] = tuple(alarms)
        if before != tuple(alarms):
            log.warning("alarm of another broker", broker=name, what=" and ".join(alarms) or "none any more")
            self._alarms_changed()

    def _alarms_changed(self) -> None:
        at = f" at {self.name}" if self.name else ""
        low = [f"low on {' and '.join(self.alarms_on)}{at}"] if self.alarms_on else []
        low += [f"low on {' and '.join(alarms)} at {name}" for name, alarms in sorted(self.alarms_elsewhere.items())]
        self.blocked = ", ".join(low)
        for listener in list(self._alarm_listeners):
            listener(self.blocked)

    def _disk_alarm(self, on: bool) -> None:
        self.set_alarm(DISK, on)

    @property
    def resident(self) -> int:
        """Bytes of bodies in memory; one that is in two queues counts twice."""
        return sum(queue.pager.resident for vhost in self.vhosts.values() for queue in vhost.queues.values())

    @property
    def counted_memory(self) -> int:
        """The same, with what messages take beside their bodies, and what is not on disk yet."""
        queues = [queue for vhost in self.vhosts.values() for queue in vhost.queues.values()]
        entries = sum(len(queue.entries) for queue in queues)
        return sum(queue.pager.resident for queue in queues) + ENTRY * entries + self.store.unsynced()

    @property
    def process_limit(self) -> int:
        """Bytes of the whole process above which publishers are blocked, too."""
        return self.memory_watch.limit(self.settings.memory_high)

    def _look(self) -> None:
        settings = self.settings
        if settings.memory_high:
            process = self.runtime.memory()
            low = self.memory_watch.look(self.counted_memory, process, settings.memory_high, settings.memory_low)
            self.set_alarm(MEMORY, low)
            if self.memory_watch.process:
                self.runtime.give_back()
            self._looking = self.runtime.call_later(settings.alarm_interval, self._look)


def _same(record: Record | None, other: object) -> bool:
    """As they are in the store, and on their way to others."""
    return json.dumps(record, sort_keys=True) == json.dumps(other, sort_keys=True)
