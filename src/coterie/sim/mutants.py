"""The mutations: for each protocol at least two lines without which some property does not hold.

`seed` is the first seed of its profile at which the mutation is known to be caught: a test need not look for it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutation:
    """One line that is removed or inverted."""

    name: str
    profile: str
    property: str
    """The property that catches it."""
    what: str
    module: str
    old: str
    new: str
    seed: int = 0


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="nakack-never-asks",
        profile="channel",
        property="G20",
        what="a receiver that misses bundles does not ask for them",
        module="coterie.group.protocols.nakack",
        old="                self.send(Ask(stream.sender, ranges), target)",
        new="                pass",
    ),
    Mutation(
        name="nakack-skips-holes",
        profile="channel",
        property="G8",
        what="a receiver delivers what is there, over a hole",
        module="coterie.group.protocols.nakack",
        old="                if packet.seqno == window.delivered + 1:",
        new='                if setattr(window, "delivered", packet.seqno - 1) is None:',
    ),
    Mutation(
        name="nakack-delivers-duplicates",
        profile="channel",
        property="G3",
        what="a bundle that came twice is delivered twice",
        module="coterie.group.protocols.nakack",
        old="                if not window.add(packet):",
        new="                if not window.add(packet) and out.append(packet) is not None:",
    ),
    Mutation(
        name="unicast3-never-asks",
        profile="channel",
        property="G20",
        what="a receiver that misses units does not ask for them",
        module="coterie.group.protocols.unicast3",
        old="            self.send(Ask(entry.conn, entry.window.missing(self.settings.ask_most)), entry.peer)",
        new="            pass",
    ),
    Mutation(
        name="unicast3-never-resends",
        profile="channel",
        property="G20",
        what="a sender does not send its highest unit again",
        module="coterie.group.protocols.unicast3",
        old='            self._resend(entry, entry.unacked[entry.sent], "highest")',
        new="            pass",
    ),
    Mutation(
        name="unicast3-closes-unflushed",
        profile="channel",
        property="G15",
        what="a connection is closed although units are not acked",
        module="coterie.group.protocols.unicast3",
        old="        flushed = (not entry.unacked and not entry.in_train) or entry.left",
        new="        flushed = True",
        seed=2,
    ),
    Mutation(
        name="unicast3-forgets-the-dead",
        profile="channel",
        property="G15",
        what="nothing is remembered of a removed connection, so that it can be delivered again",
        module="coterie.group.protocols.unicast3_entries",
        old="        self.stones[entry.peer] = Tombstone(entry.conn, delivered, closed, entry.in_train)",
        new="        pass",
        seed=12,
    ),
    Mutation(
        name="stable-anybody",
        profile="channel",
        property="G14",
        what="a bundle counts as stable as soon as anybody has it",
        module="coterie.group.protocols.stable",
        old="        stable = min(self._reported.values(), default=self._nakack.sent)",
        new="        stable = max(self._reported.values(), default=self._nakack.sent)",
    ),
    Mutation(
        name="stable-keeps-own",
        profile="channel",
        property="G20",
        what="a sender does not forget what is stable",
        module="coterie.group.protocols.stable",
        old="            self._nakack.stable(self.stack.local, stable)",
        new="            pass",
    ),
    Mutation(
        name="fixed-starts-too-early",
        profile="channel",
        property="G20",
        what="a member is promised a bundle that was sent before it came",
        module="coterie.group.protocols.fixed",
        old="        guest.start = self._nakack.sent + 1",
        new="        guest.start = max(1, self._nakack.sent)",
        seed=2,
    ),
    Mutation(
        name="fixed-welcomes-once",
        profile="channel",
        property="G20",
        what="a welcome that is lost is not repeated",
        module="coterie.group.protocols.fixed",
        old="            if not guest.answered and peer in self.stack.view:",
        new="            if False:",
        seed=2,
    ),
    Mutation(
        name="fixed-keeps-suspects",
        profile="channel",
        property="G20",
        what="a suspected member stays in the view",
        module="coterie.group.protocols.fixed",
        old="            case Suspect(members):\n                self._remove(members)",
        new="            case Suspect(members):\n                pass",
        seed=2,
    ),
    Mutation(
        name="flow-never-asks",
        profile="channel",
        property="G20",
        what="a sender without credit does not ask for it",
        module="coterie.group.protocols.flow",
        old="                self.send(HowFar(False), dest)",
        new="                pass",
        seed=15,
    ),
    Mutation(
        name="flow-waits-for-the-dead",
        profile="channel",
        property="G20",
        what="a receiver that left still holds up the sender",
        module="coterie.group.protocols.flow",
        old="                self._all.marks = {m: marks.get(m, upto) for m in view.members if m not in waiting}",
        new="                self._all.marks = marks | {m: marks.get(m, upto) for m in view.members}",
        seed=2,
    ),
    Mutation(
        name="frag-mixes-streams",
        profile="channel",
        property="G3",
        what="trains to all and to one are put together",
        module="coterie.group.protocols.fragment",
        old="        key = (packet.sender, packet.carrier, packet.conn)",
        new="        key = (packet.sender, 0, 0)",
        seed=21,
    ),
    Mutation(
        name="frag-joins-backwards",
        profile="channel",
        property="G8",
        what="the parts of a train are joined in the wrong order",
        module="coterie.group.protocols.fragment",
        old="        self.parts.append(packet)",
        new="        self.parts.insert(0, packet)",
        seed=1,
    ),
    Mutation(
        name="failure-never-suspects",
        profile="channel",
        property="G20",
        what="a member that gave no sign of life is not suspected",
        module="coterie.group.protocols.failure",
        old="            self._suspect(silent, proof=False)",
        new="            pass",
        seed=2,
    ),
    Mutation(
        name="failure-blind",
        profile="channel",
        property="G20",
        what="silence is not noticed",
        module="coterie.group.protocols.failure",
        old="                silent.append(member)",
        new="                pass",
        seed=2,
    ),
    Mutation(
        name="tcp-dials-once",
        profile="channel",
        property="G20",
        what="an endpoint is not dialled again after a failed attempt",
        module="coterie.group.protocols.tcp",
        old="            link.contact.dialling = False\n        if self._listener is None:",
        new="            pass\n        if self._listener is None:",
        seed=8,
    ),
    Mutation(
        name="tcp-forgets-half-packets",
        profile="channel",
        property="G20",
        what="the beginning of a packet that came in two pieces is lost",
        module="coterie.group.protocols.tcp_peer",
        old="            self._parts.append(chunk[at:])\n            self._have, self._need = end - at, need",
        new="            self._have, self._need = end - at, need",
        seed=21,
    ),
    Mutation(
        name="udp-greets-once",
        profile="channel",
        property="G20",
        what="a HELLO that is not answered is not repeated",
        module="coterie.group.protocols.udp",
        old="        contact.dialling = False\n        self._contacts.failed(contact)",
        new="        self._contacts.failed(contact)",
        seed=2,
    ),
    Mutation(
        name="udp-takes-altered",
        profile="channel",
        property="G3",
        what="a datagram whose checksum is wrong is taken",
        module="coterie.group.packet",
        old='            raise WireError("altered on the way")',
        new="            pass",
    ),
    Mutation(
        name="discovery-never-looks",
        profile="channel",
        property="G20",
        what="nobody looks around for other members",
        module="coterie.group.protocols.discovery_base",
        old="                self._tell(endpoint)\n        self.look()",
        new="                self._tell(endpoint)",
    ),
    Mutation(
        name="discovery-tells-nothing-new",
        profile="channel",
        property="G20",
        what="an endpoint is told to the transport only if it was known before",
        module="coterie.group.protocols.discovery_base",
        old="            if endpoint not in self._found:",
        new="            if endpoint in self._found:",
    ),
)
