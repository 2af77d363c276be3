"""Scripts that feed one replica, and say what it answers: small texts, to be read and extended (testdata/replica).

A script is a row of blocks. Above the line `----` is what comes to the replica, below it what it answers to the last of
these lines: its state and how far it has come, why it does not serve if that is new, its commit marks if they have
moved, and then each effect, in order. `#` begins a comment.

    new a size=3                          a broker that knows nobody
    begun a b c                           a, after these have begun a cluster; it is the oldest
    newcomer a b c queues=1               a, which b and c have updated; it lacks messages of that queue
    load epoch=2 index=9 voters=a,b,c     what its store has kept; `updating`, `damaged`; `content` is the store's sum
    view 2 a b c                          a view; `from=a,b+c`: it is a merge of these
    status b epoch=2 index=9 ...          a status on the log; of the broker itself what it really says
    ready|filled|whole|back|voter|forget  words on the log: who says it, and what
    event b                               an event of a client; a second word: what was made of it
    offer b epoch=3 index=12 ...          b begins to send its state; then `installed`, `has-all`, `give-up`
    disk b 7 | applied b 7 | held 5       reports; `life=old`: of a former life; `other`: with another chain than ours
    chain b 7 other                       a word on the log, of what b's chain is there: ours, or another one
    tick unsynced=900                     the clock; `low`: the disk takes nothing
    refused | lost-way | left | closed    what else may happen
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from coterie.cluster import ready
from coterie.cluster.chain import SIZE, Link
from coterie.cluster.commit import START, name_of
from coterie.cluster.membership import Content, Era, Progress, Status
from coterie.cluster.ready import Effect, Ready
from coterie.cluster.replica import Replica
from coterie.cluster.shared_settings import DISPATCH
from coterie.cluster.standing import Disk
from coterie.cluster.wire import VERSION, Head, Kind
from coterie.group.members import Address, MergeView, View, ViewId

UNSYNCED_MAX = 1000
FOLDER = Path(__file__).parent / "testdata" / "replica"
KINDS = {ready.Apply: "apply", ready.Persist: "persist", ready.Send: "send", ready.Tell: "tell"}


def address(name: str) -> Address:
    return Address(name, 1)


def shared(given: dict[str, str]) -> dict[str, str]:
    return {DISPATCH: given.get("dispatch", "credit")}


def words(line: str) -> tuple[list[str], dict[str, str]]:
    """Plain words, and what is given by name; a name alone is `yes`."""
    parts = line.split()
    plain = [part for part in parts if "=" not in part]
    return plain, dict(part.split("=", 1) for part in parts if "=" in part)


class Script:
    """One replica, and what was said to it."""

    def __init__(self) -> None:
        self.replica = Replica(address("a"))
        self._why = ""
        self._marks = (START, 0, 0)
        self._written = 0
        self.readies: list[Ready] = []

    def run(self, line: str) -> list[str]:
        """The answer to one line."""
        (do, *rest), given = words(line)
        found = getattr(self, "do_" + do.replace("-", "_"))(rest, given) or []
        self.readies.append(found)
        if any(isinstance(effect, ready.CountDisks) for effect in found):
            found = [*found, *self.replica.count_disks()]
        return [*self._state(), *(describe(effect) for effect in found)]

    def _state(self) -> Iterator[str]:
        replica, commit = self.replica, self.replica.commit
        yield f"{replica.state.title} at {replica.progress.epoch}.{replica.progress.index}"
        if replica.why != self._why:
            self._why = replica.why
            yield f"why: {replica.why or '-'}"
        marks = commit.held, commit.on_disk, commit.everywhere
        if marks != self._marks:
            self._marks = marks
            yield f"commit: held {commit.held.view}:{commit.held.position}, on disk {marks[1]}, everywhere {marks[2]}"

    def _disk(self, plain: list[str], given: dict[str, str]) -> Disk:
        return Disk(self._written, int(given.get("unsynced", 0)), "low" in plain, "keeps-old" in plain)

    # Beginnings.

    def do_new(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica = Replica(address(plain[0]), int(given.get("size", 3)), UNSYNCED_MAX)
        self.replica.shared = shared(given)

    def do_load(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica.recovered(
            {
                "epoch": int(given["epoch"]), "index": int(given["index"]), "voters": given["voters"].split(","),
                "cluster": given.get("cluster", "x"), "version": VERSION, "era": ["1@a", ["a", "b", "c"]],
                "chain": "00", "updating": "updating" in plain, "damaged": "damaged" in plain, "time": None,
            }
        )  # fmt: skip
        self.replica.loaded(Content(given.get("content", "sum"), {}))

    def do_begun(self, plain: list[str], given: dict[str, str]) -> None:
        us, *others = plain
        for line in (f"new {us}", f"view 1 {' '.join(plain)}", *(f"status {name}" for name in (us, *others))):
            self.run(line)

    def do_newcomer(self, plain: list[str], given: dict[str, str]) -> None:
        us, *others = plain
        voters = ",".join(others)
        for line in (
            f"new {us}", f"view 7 {' '.join(others)} {us}", f"status {us}", f"offer {others[0]} epoch=3 index=12",
            f"installed epoch=3 index=14 in_step={voters}", f"ready {us} cut=3.14 queues={given.get('queues', '')}",
        ):  # fmt: skip
            self.run(line if line[0] not in "oi" else f"{line} voters={voters}")

    # The group.

    def do_view(self, plain: list[str], given: dict[str, str]) -> Ready:
        number, *names = plain
        members = tuple(address(name) for name in names)
        view = View(ViewId(int(number), members[0]), members)
        if "from" in given:
            parts = [tuple(map(address, part.split(","))) for part in given["from"].split("+")]
            views = tuple(View(ViewId(int(number) - 1, part[0]), part) for part in parts)
            view = MergeView(view.id, members, views)
        goes_on = self.replica.goes_on(view)
        return self.replica.view_changed(goes_on, self._written)

    def do_held(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.held(int(plain[0]))

    # Words on the log.

    def _say(self, sender: str, kind: Kind, said: dict[str, Any], disk: Disk) -> Ready:
        step = self.replica.read(address(sender), kind, said, disk)
        return [] if step is None else step()

    def do_status(self, plain: list[str], given: dict[str, str]) -> Ready:
        name, *flags = plain
        replica, disk = self.replica, self._disk(flags, given)
        if address(name) == replica.us:
            status = replica.status(disk, "full" not in flags, 100.0)
        else:
            epoch, index = int(given.get("epoch", 0)), int(given.get("index", 0))
            voters = tuple(given["voters"].split(",")) if "voters" in given else ()
            cluster = given.get("cluster", "x" if epoch else "")
            status = Status(
                Progress(epoch, index), cluster, voters, int(given.get("size", 3)), "live" in flags,
                "damaged" in flags, "updating" in flags, "full" not in flags, VERSION, VERSION,
                shared(given), Era("1@a", ("a", "b", "c")) if epoch else Era(),
                "00" if epoch else "", given.get("content", "sum") if epoch and "live" not in flags else "", {}, 100.0,
                "unwell" in flags, "serving" in flags,
            )  # fmt: skip
            if "live" in flags:  # it went on with us
                status = Status.from_json(
                    status.to_json() | {"era": replica.era.to_json(), "chain": replica.chain.hex()}
                )
        return self._say(name, Kind.STATUS, {**status.to_json(), "view": str(replica.view.id)}, disk)

    def _cut(self, given: dict[str, str]) -> list[int]:
        return [int(part) for part in given["cut"].split(".")]

    def do_ready(self, plain: list[str], given: dict[str, str]) -> Ready:
        said = {
            "view": str(self.replica.view.id), "speaks": VERSION, "cut": self._cut(given), "cluster": "x",
            "queues": [int(number) for number in given.get("queues", "").split(",") if number],
        }  # fmt: skip
        return self._say(plain[0], Kind.READY, said, Disk(self._written))

    def do_filled(self, plain: list[str], given: dict[str, str]) -> Ready:
        said = {"cut": self._cut(given), "queues": [int(number) for number in given["queues"].split(",")]}
        return self._say(plain[0], Kind.FILLED, said, Disk(self._written))

    def do_whole(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self._say(plain[0], Kind.WHOLE, {"cut": self._cut(given)}, Disk(self._written))

    def do_back(self, plain: list[str], given: dict[str, str]) -> Ready:
        said = {"view": str(self.replica.view.id), "bytes": int(given.get("bytes", 2000))}
        return self._say(plain[0], Kind.BACK, said, Disk(self._written))

    def do_chain(self, plain: list[str], given: dict[str, str]) -> Ready:
        place, found = self._link(plain, given)
        said = {"epoch": place.epoch, "index": place.index, "chain": found.hex()}
        return self._say(plain[0], Kind.CHAIN, said, Disk(self._written))

    def do_voter(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self._voters(Kind.VOTER, plain, given)

    def do_forget(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self._voters(Kind.FORGET, plain, given)

    def _voters(self, kind: Kind, plain: list[str], given: dict[str, str]) -> Ready:
        """`voters`: as the sender knows them, if that is not what they are."""
        voters = given["voters"].split(",") if "voters" in given else list(self.replica.voters)
        return self._say(plain[0], kind, {"name": plain[1], "voters": voters}, Disk(self._written))

    def do_event(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica.begin_event(self._written)
        head = Head(Kind.PUBLISH, 0.0, 1, False, VERSION)
        self.replica.end_event(head, plain[0].encode(), b"event", plain[-1].encode() if plain[1:] else b"")
        self._written += 1

    # Reports, and the clock.

    def _life(self, name: str, given: dict[str, str]) -> int:
        return name_of(Progress(0, 1)) if given.get("life") == "old" else self.replica.life(address(name))

    def _link(self, plain: list[str], given: dict[str, str]) -> Link:
        """The chain is ours, if we have come so far and nothing else is said."""
        place = Progress(int(given.get("epoch", self.replica.progress.epoch)), int(plain[1]))
        if "other" in plain:
            return Link(place, b"\1" + b"other chain".ljust(SIZE))
        return Link(place, self.replica.divergence.history.at(place))

    def do_disk(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.disk_reached(address(plain[0]), self._link(plain, given), self._life(plain[0], given))

    def do_applied(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.log_reached(address(plain[0]), self._link(plain, given), self._life(plain[0], given))

    def do_tick(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.tick(1, self._disk(plain, given))

    # The update.

    def do_offer(self, plain: list[str], given: dict[str, str]) -> Ready:
        to, voters = Progress(int(given["epoch"]), int(given["index"])), tuple(given["voters"].split(","))
        return self.replica.offered(address(plain[0]), to, Era("1@a", voters), "x", voters)

    def do_installed(self, plain: list[str], given: dict[str, str]) -> None:
        members = [address(name) for name in given["in_step"].split(",")]
        progress = Progress(int(given["epoch"]), int(given["index"]))
        voters = tuple(given["voters"].split(","))
        speaks = dict.fromkeys(voters, VERSION)
        lives = dict.fromkeys(members, Progress(1, 0))
        self.replica.installed(
            Link(progress, b"\1".ljust(SIZE + 1)), b"", [], Era("1@a", voters), "x", voters, members, {}, lives,
            {"spoken": VERSION, "speaks": speaks},
        )  # fmt: skip

    def do_has_all(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica.filled()

    def do_give_up(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica.given_up("it makes no sense")

    def do_lost_way(self, plain: list[str], given: dict[str, str]) -> None:
        self.replica.lost_way()

    # Refusals, and the end.

    def do_refused(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.refused("it is of another cluster")

    def do_left(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.left("this node is drained")

    def do_closed(self, plain: list[str], given: dict[str, str]) -> Ready:
        return self.replica.closed("the group has closed")


def describe(effect: Effect) -> str:
    """Its kind, its name, and what it has that is not nothing."""
    kind = next(name for base, name in KINDS.items() if isinstance(effect, base))
    name = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(effect).__name__).strip()
    values = {field.name: getattr(effect, field.name) for field in fields(effect)}  # type: ignore[arg-type]
    given = {name: value for name, value in values.items() if value not in (None, {}, False, (), "")}
    return " ".join([f"{kind}: {name}", *(name if value is True else _text(value) for name, value in given.items())])


def _text(value: object) -> str:
    match value:
        case Address():
            return value.name
        case Kind():
            return value.name
        case tuple():
            return ",".join(map(str, value))
        case dict():
            return " ".join(f"{key}={item}" for key, item in value.items())
        case _:
            return str(value)


def blocks(text: str) -> Iterator[tuple[list[str], list[str]]]:
    """Comments and lines above, and the answer below."""
    for block in text.strip().split("\n\n"):
        above, line, below = block.partition("----")
        yield above.strip().split("\n"), below.strip().split("\n") if line else []


def played(text: str, script: Script) -> str:
    """The same script, with the answers that there are now."""
    found = []
    for above, _ in blocks(text):
        lines = [line for line in above if line and not line.startswith("#")]
        answers: list[str] = []
        for line in lines:
            answers = script.run(line)
        found.append("\n".join([*above, "----", *answers] if lines else above))
    return "\n\n".join(found) + "\n"
