"""A run that nobody ran: a trace with everything that a diagram has to show, of any length."""

from __future__ import annotations

from random import Random

from coterie.trace import Event, Json


class Pretend:
    """Three members and more; C is cut off for a while, D crashes and comes back; some bundles are lost."""

    def __init__(self, members: int = 4, bundles: int = 60, seconds: float = 2.0, seed: int = 1) -> None:
        self._random = Random(seed)
        self._events: list[tuple[float, str, int, str, dict[str, Json]]] = []
        self._names = [chr(ord("A") + i) for i in range(members)]
        self._seconds = seconds
        self._bundles = bundles

    def events(self) -> list[Event]:
        self._members()
        self._faults()
        self._traffic()
        numbers: dict[tuple[str, int], int] = {}
        out = []
        for t, node, inc, kind, values in sorted(self._events, key=lambda entry: entry[0]):
            n = numbers.get((node, inc), 0)
            numbers[node, inc] = n + 1
            event = Event("pretend", node, inc, n, round(t, 6), kind)
            for key, value in values.items():
                if key in ("view", "sender", "first", "last", "count", "sum") and node != "world":
                    setattr(event, key, value)
                else:
                    event.data[key] = value
            out.append(event)
        return out

    def _put(self, t: float, node: str, kind: str, inc: int = 1, /, **values: Json) -> None:
        self._events.append((t, node, inc, kind, values))

    def _view(self, t: float, node: str, counter: int, members: list[str], inc: int = 1) -> None:
        self._put(t, node, "view", inc, view=f"{counter}@{node}#{inc}", members=[*members])

    def _members(self) -> None:
        end = self._seconds
        everyone = [f"{name}#1" for name in self._names]
        without_c = [name for name in everyone if name != "C#1"]
        for i, name in enumerate(self._names):
            self._put(0.001 * i, name, "start", stack=["TCP", "NAKACK"])
            self._view(0.002 + 0.001 * i, name, 1, [f"{name}#1"])
            self._view(0.01 + 0.002 * i, name, 2, everyone)
            if name == "C":
                self._view(0.36 * end, name, 3, ["C#1"])
                self._view(0.55 * end, name, 4, everyone)
            elif name != "D":
                self._put(0.34 * end, name, "suspect", members=["C#1"], proof=False)
                self._view(0.341 * end + 0.001 * i, name, 3, without_c)
                self._put(0.53 * end, name, "unsuspect", members=["C#1"])
                self._view(0.531 * end + 0.001 * i, name, 4, everyone)
                self._view(0.67 * end + 0.001 * i, name, 5, [m for m in everyone if m != "D#1"])
                self._view(0.81 * end + 0.001 * i, name, 6, [*[m for m in everyone if m != "D#1"], "D#2"])
        self._put(0.65 * end, "D", "crash")
        self._put(0.8 * end, "D", "restart", 2)
        self._put(0.8 * end, "D", "start", 2)
        self._view(0.812 * end, "D", 1, [*[m for m in everyone if m != "D#1"], "D#2"], 2)

    def _faults(self) -> None:
        end = self._seconds
        cut: list[Json] = [["C", name] for name in self._names if name != "C"]
        self._put(0.3 * end, "world", "fault", 0, fault="partition", number=1, duration=0.2, nodes=[], links=cut)
        self._put(0.5 * end, "world", "heal", 0, fault="partition", number=1)
        self._put(0.2 * end, "world", "fault", 0, fault="loss", number=2, duration=0.3, nodes=[], links=[["A", "B"]])
        self._put(0.45 * end, "world", "heal", 0, fault="loss", number=2)
        self._put(0.65 * end, "world", "fault", 0, fault="crash", number=3, duration=0.0, nodes=["D"], links=[])
        self._put(0.7 * end, "world", "fault", 0, fault="pause", number=4, duration=0.05, nodes=["B"], links=[])
        self._put(0.74 * end, "world", "heal", 0, fault="pause", number=4)
        self._put(0.9 * end, "world", "heal", 0, fault="all", last=True)

    def _traffic(self) -> None:
        sent: dict[str, int] = {}
        for i in range(self._bundles):
            t = 0.05 + (self._seconds - 0.1) * i / self._bundles
            name = self._names[i % len(self._names)]
            if name == "D" and t > 0.6 * self._seconds:
                continue
            sent[name] = number = sent.get(name, 0) + 1
            self._send(t, name, number, None)
            if i % 5 == 0:
                self._send(t + 0.002, name, 1000 + i, self._names[(i + 1) % len(self._names)])

    def _send(self, t: float, name: str, number: int, to: str | None) -> None:
        end = self._seconds
        about: dict[str, Json] = {"sender": f"{name}#1", "first": number, "last": number}
        if to is not None:
            about["conn"] = 7
        app: dict[str, Json] = {"count": 3, "sum": number, "app": True}
        self._put(t, name, "send", to="all" if to is None else f"{to}#1", **about, **app)
        if to is None:
            self._put(t, name, "deliver", **about, **app)
        for other in self._names if to is None else [to]:
            if other == name or (other == "D" and t > 0.64 * end):
                continue
            cut = "C" in (other, name) and 0.3 * end < t < 0.5 * end
            arrives = t + self._random.uniform(0.004, 0.02)
            if cut or self._random.random() < 0.08:
                again = t + self._random.uniform(0.03, 0.05)
                self._put(again, name, "retransmit", to=f"{other}#1", reason="asked", **about)
                if cut:
                    continue
                arrives = again + 0.01
            self._put(arrives, other, "receive", **about)
            self._put(arrives + 0.0005, other, "deliver", **about, **app)
            self._put(arrives + 0.001, other, "ack", last=number, to=f"{name}#1")
