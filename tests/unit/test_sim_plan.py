"""Plans, shrinking, mutations: the data that simulated runs are made of."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

from coterie.audit import properties
from coterie.errors import UserError
from coterie.sim import mutations, profiles
from coterie.sim.cluster_run import FROM_OUTSIDE
from coterie.sim.mutants import Mutation
from coterie.sim.plan import KINDS, Fault, FaultMaker, Plan, swarm
from coterie.sim.profile_channel import CHANNEL_FAULTS
from coterie.sim.profiles import channel_plan, profile
from coterie.sim.result import CRASH
from coterie.sim.shrink import Shrinker


def test_a_plan_depends_on_its_seed_only_and_survives_json() -> None:
    for seed in range(50):
        plan = channel_plan(seed)
        assert plan == channel_plan(seed)
        again = Plan.from_json(plan.to_json())
        assert again.to_json() == plan.to_json()
        assert again.faults == plan.faults
        assert again.bursts == plan.bursts


def test_all_faults_of_a_plan_are_over_when_it_says_so() -> None:
    for seed in range(200):
        plan = channel_plan(seed)
        assert all(0 <= fault.at <= fault.at + fault.duration <= plan.quiet_at + 1e-9 for fault in plan.faults)
        assert all(burst.at + burst.gap * (burst.bundles - 1) <= plan.quiet_at for burst in plan.bursts)


def test_every_run_has_three_members_at_least_and_some_have_many() -> None:
    plans = [channel_plan(seed) for seed in range(300)]
    assert min(len(plan.members) for plan in plans) == 3
    assert max(len(plan.members) for plan in plans) > 6
    assert {plan.stack[0][0] for plan in plans} == {"TCP", "UDP"}


def test_the_swarm_enables_each_kind_in_some_runs_and_not_in_others() -> None:
    runs = Counter(kind for seed in range(400) for kind in {fault.kind for fault in channel_plan(seed).faults})
    assert set(runs) == set(CHANNEL_FAULTS)
    assert all(40 < runs[kind] < 360 for kind in CHANNEL_FAULTS)
    assert any(not channel_plan(seed).faults for seed in range(400))


def test_two_members_at_least_never_crash_for_good() -> None:
    for seed in range(300):
        plan = channel_plan(seed)
        lost = {f.nodes[0] for f in plan.faults if f.kind == "crash" and not f.values["restart"]}
        assert len(plan.members) - len(lost) >= 2


def test_every_kind_of_fault_can_be_made() -> None:
    maker = FaultMaker(random.Random(1), ["a", "b", "c"], 0.0, 5.0)
    for kind in KINDS:
        fault = maker.one(kind)
        assert fault.kind == kind
        assert fault.nodes or fault.links


def test_a_swarm_is_sometimes_empty_and_sometimes_everything() -> None:
    rng = random.Random(1)
    sizes = Counter(len(swarm(rng, CHANNEL_FAULTS)) for _ in range(1000))
    assert sizes[0]
    assert sizes[len(CHANNEL_FAULTS)]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', '{"format": 1, "stack": 3}'])
def test_what_is_no_plan_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"my\.json"):
        Plan.from_json(text, "my.json")


def test_an_unknown_profile_is_refused_with_what_was_probably_meant() -> None:
    with pytest.raises(UserError, match="did you mean 'channel'"):
        profile("chanel")


def test_shrinking_keeps_just_what_the_violation_needs() -> None:
    plan = channel_plan(3)
    needed = [burst for burst in plan.bursts if burst.to == "all"][2]
    other = next(name for name in plan.members if name != needed.node)
    plan = replace(plan, faults=[*plan.faults, Fault(1.0, "reset", [needed.node, other])])

    def run(candidate: Plan) -> list[str]:
        reset = any(fault.kind == "reset" and fault.nodes == [needed.node, other] for fault in candidate.faults)
        sent = any((burst.at, burst.node) == (needed.at, needed.node) for burst in candidate.bursts)
        return ["G3", "G8"] if reset and sent else []

    shrunk = Shrinker(run).shrink(plan)
    assert shrunk is not None
    assert shrunk.property == "G3"
    assert [fault.kind for fault in shrunk.plan.faults] == ["reset"]
    assert shrunk.plan.members == sorted([needed.node, other])
    assert [(burst.at, burst.bundles, burst.messages) for burst in shrunk.plan.bursts] == [(needed.at, 1, 1)]
    assert shrunk.plan.size < plan.size
    assert "G3" in run(Plan.from_json(shrunk.plan.to_json()))


def test_shrinking_keeps_to_the_number_of_tries_and_refuses_what_violates_nothing() -> None:
    tries = 0

    def run(_: Plan) -> list[str]:
        nonlocal tries
        tries += 1
        return ["G3"] if tries == 1 else []

    assert Shrinker(run, tries_max=5).shrink(channel_plan(1)) is not None
    assert tries == 6
    assert Shrinker(lambda _: []).shrink(channel_plan(1)) is None


def test_each_mutation_finds_its_line_exactly_once_and_changes_it_into_python() -> None:
    for mutation in mutations.MUTATIONS:
        changed = mutations.mutate(mutation, mutations.source_of(mutation))
        compile(changed, mutation.module, "exec")
        assert mutation.profile in profiles.PROFILES


def test_mutations_have_different_names_and_each_protocol_has_two() -> None:
    assert len({mutation.name for mutation in mutations.MUTATIONS}) == len(mutations.MUTATIONS)
    of = Counter(mutation.name.split("-")[0] for mutation in mutations.MUTATIONS)
    wanted = (
        "nakack", "unicast3", "stable", "fixed", "flow", "frag", "failure", "tcp", "udp", "gms", "merge", "flush2",
        "state", "total",
    )  # fmt: skip
    assert {name: of[name] for name in wanted if of[name] < 2} == {}
    judged = {fold.name for fold in properties()} | FROM_OUTSIDE
    assert {mutation.property for mutation in mutations.MUTATIONS} - {CRASH} == judged


def test_a_mutation_whose_text_is_missing_or_ambiguous_is_refused() -> None:
    broken = Mutation("m", "channel", "G3", "", "coterie.errors", "class ", "")
    with pytest.raises(UserError, match="not once"):
        mutations.mutate(broken, mutations.source_of(broken))


def test_a_mutation_is_applied_on_import_and_too_late_afterwards() -> None:
    code = (
        "import json, sys\n"
        "from coterie.sim import mutations\n"
        "from coterie.sim.mutants import Mutation\n"
        "m = Mutation('m', 'channel', 'G3', '', 'coterie.group.bundle', 'OFFSET_SIZE = 4', 'OFFSET_SIZE = 8')\n"
        "mutations.install(m)\n"
        "from coterie.group import bundle\n"
        "try:\n"
        "    mutations.install(m)\n"
        "except Exception as error:\n"
        "    print(json.dumps([bundle.OFFSET_SIZE, str(error)]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    size, error = json.loads(done.stdout)
    assert size == 8
    assert "fresh process" in error


def test_an_unknown_mutation_is_refused() -> None:
    with pytest.raises(UserError, match="there is no mutation"):
        mutations.find("nope")
