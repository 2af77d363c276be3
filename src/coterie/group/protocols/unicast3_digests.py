"""What a flush asks of UNICAST3: what was sent and may not have arrived, what was delivered, and to wait for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coterie.group.members import Address
from coterie.group.protocol import Protocol
from coterie.group.protocols.unicast3_entries import Graveyard, ReceiverEntry, SenderEntry


class Digests(Protocol):
    """The part of UNICAST3 that answers a flush."""

    senders: dict[Address, SenderEntry]
    receivers: dict[Address, ReceiverEntry]
    _graves: Graveyard
    _awaited: Mapping[Address, tuple[int, int]]
    _on_awaited: Callable[[], None] | None

    def sent_digest(self) -> dict[Address, tuple[int, int]]:
        """By member of the view: the connection to it, and the last unit of the application on that, if it may not
        have arrived yet. Units of protocols do not count: a flush's own messages are among them, and state."""
        return {
            peer: (entry.conn, entry.of_app)
            for peer, entry in self.senders.items()
            if entry.of_app > entry.acked and peer in self.stack.view
        }

    def received_digest(self) -> dict[Address, tuple[int, int]]:
        """By member of the view: the last connection from it, and the last unit delivered on that."""
        digest = {peer: (stone.conn, stone.delivered) for peer, stone in self._graves.stones.items()}
        for peer, entry in self.receivers.items():
            if entry.window is not None:
                digest[peer] = (entry.conn, entry.window.delivered)
        return {peer: digest[peer] for peer in self.stack.view.members if peer in digest}

    def await_units(self, upto: Mapping[Address, tuple[int, int]], done: Callable[[], None] | None) -> None:
        """Call `done` when what these members sent us is delivered up to a connection and a number. The next call takes
        the place of this one; nobody is given up by itself."""
        self._awaited, self._on_awaited = upto, done
        self._look_at_awaited()

    def _look_at_awaited(self) -> None:
        received = self.received_digest() if self._awaited else {}
        done = self._on_awaited
        if done is not None and all(received.get(peer, (0, 0)) >= unit for peer, unit in self._awaited.items()):
            self._on_awaited = None
            done()
