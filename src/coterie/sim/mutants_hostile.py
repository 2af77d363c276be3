"""The mutations of validation: without one of these lines, what a hostile client brings comes in and does harm."""

from __future__ import annotations

from coterie.sim.mutation import Mutation

HOSTILE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="validation-measures-nothing",
        profile="broker",
        property="B15",
        what="a routing key for dead letters, or a name, may have more bytes than can be written",
        module="coterie.broker.validation",
        old="    if size is not None and size > NAME_MAX:",
        new="    if False:",
        seed=5,
    ),
    Mutation(
        name="dead-letter-counts-on",
        profile="cluster",
        property="B15",
        what="a count of deaths grows beyond what a table can hold",
        module="coterie.broker.dead_letter",
        old="    count = min(sum(_count(death) for death in same) + 1, COUNT_MAX)",
        new="    count = sum(_count(death) for death in same) + 1",
        seed=26,
    ),
    Mutation(
        name="letters-of-letters-have-no-end",
        profile="broker",
        property="B15",
        what="letters that die again and again, and are twice as many each time, keep a broker busy",
        module="coterie.broker.graveyard",
        old="        if self._left >= 0:",
        new="        if True:",
        seed=5,
    ),
    Mutation(
        name="steps-are-taken-as-they-come",
        profile="broker",
        property="crash",
        what="what a step of a link says is not looked at",
        module="coterie.broker.following.steps",
        old="        wrong = check(step.said[name])\n",
        new='        wrong = ""\n',
        seed=3,
    ),
    Mutation(
        name="cluster-counts-consumers-in-32-bits",
        profile="cluster",
        property="crash",
        what="the numbers of consumers have 32 bits, and a broker has lived long",
        module="coterie.cluster.wire",
        old='_CREDIT = struct.Struct(">QQQQQ")',
        new='_CREDIT = struct.Struct(">IIIII")',
        seed=10,
    ),
)
