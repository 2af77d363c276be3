"""The processes of the demonstration, as the one who tells the story sees them."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from coterie.errors import CoterieError
from coterie.workers import Message, Worker, free_ports

PATIENCE = 30.0
"""Seconds after which something that should have happened has not."""


class Player:
    """One process, and what it said last."""

    def __init__(self, name: str, arguments: Message) -> None:
        self.name = name
        self.view: list[str] = []
        """Names of the members of its view."""
        self.view_id = ""
        self.view_at = 0.0
        self._worker = Worker("coterie.demo.member", arguments)
        self._answers: queue.Queue[Message] = queue.Queue()
        self._states: queue.Queue[Message] = queue.Queue()
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                message = self._worker.hear()
            except (CoterieError, ValueError):  # it ended, as it was told to or was made to
                return
            if "id" in message:
                with self._changed:
                    self.view = [member.rpartition("#")[0] for member in message["view"]]
                    self.view_id, self.view_at = message["id"], message["at"]
                    self._changed.notify_all()
            elif "state" in message:
                self._states.put(message)
            else:
                self._answers.put(message)

    def tell(self, what: str, **more: object) -> None:
        self._worker.tell({"do": what, **more})

    def ask(self, what: str) -> Message:
        self.tell(what)
        return self._hear(self._answers, what)

    def state(self) -> Message:
        """Wait until it has been given a state."""
        message = self._hear(self._states, "state")
        if message["state"] is None:
            raise CoterieError(f"{self.name} was not given a state: {message['why']}")
        return message

    def _hear(self, messages: queue.Queue[Message], what: str) -> Message:
        try:
            return messages.get(timeout=PATIENCE)
        except queue.Empty:
            raise CoterieError(f"{self.name} has not answered '{what}' for {PATIENCE:g} s") from None

    def wait_for_view(self, names: Iterable[str]) -> float:
        """When it had a view of exactly these."""
        wanted = sorted(names)
        with self._changed:
            if not self._changed.wait_for(lambda: sorted(self.view) == wanted, PATIENCE):
                has = f"{self.name} still sees {', '.join(self.view) or 'nobody'} after {PATIENCE:g} s"
                raise CoterieError(f"{has}, not {', '.join(wanted)}")
            return self.view_at

    def kill(self) -> None:
        self._worker.kill()

    def end(self) -> None:
        self._worker.end()


class Cast:
    """All of them."""

    def __init__(self, names: Sequence[str], folder: Path, run: str, segment_seconds: float) -> None:
        self._folder, self._run, self._segment_seconds = folder, run, segment_seconds
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._started: Counter[str] = Counter()
        self.players: dict[str, Player] = {}

    def start(self, name: str, state: bool = False) -> Player:
        """A process more; with `state` it joins with the state of the group."""
        self._started[name] += 1
        peers = [port for other, port in self._ports.items() if other != name]
        self.players[name] = player = Player(name, {
            "name": name, "port": self._ports[name], "peers": peers, "state": state, "trace": str(self._folder),
            "run": self._run, "incarnation": self._started[name], "segment_seconds": self._segment_seconds,
        })  # fmt: skip
        return player

    def together(self, *names: str) -> float:
        """Wait until these are in a view of their own; when the last of them was."""
        return max(self.players[name].wait_for_view(names) for name in names)

    def tell(self, what: str, **more: object) -> None:
        for player in self.players.values():
            player.tell(what, **more)

    def ask(self, what: str) -> dict[str, Message]:
        return {name: player.ask(what) for name, player in self.players.items()}

    def cut(self, one: Iterable[str], other: Iterable[str]) -> None:
        """Nothing passes any more between these two parts."""
        for here, there in ((one, other), (other, one)):
            for name in here:
                self.players[name].tell("cut", **{"from": list(there)})

    def at_rest(self) -> dict[str, Message]:
        """Wait until nobody holds anything back, and what everybody then says."""
        deadline = time.monotonic() + PATIENCE
        while True:
            answers = self.ask("tell")
            busy = any(amount for answer in answers.values() for amount in answer["held"].values())
            if not busy or time.monotonic() > deadline:
                return answers
            time.sleep(0.05)

    def end(self) -> None:
        for player in self.players.values():
            player.end()
