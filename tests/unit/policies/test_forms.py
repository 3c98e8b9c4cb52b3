# SPDX-License-Identifier: Apache-2.0
"""Forms of policies: as a paper prints them, by vCPU, and within a number of moves."""

from dataclasses import replace

import pytest

from amp_nova.exceptions import ConfigInvalid
from amp_nova.policies.acfs import AcfsMemory
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.deficit import DeficitAccount
from amp_nova.policies.placing.whole_instances import InstanceView, take_turns
from amp_nova_lab.run import read_policy, run
from tests.unit.lab.builders import guest, scenario, topology

FAST, SLOW = frozenset({0}), frozenset({1})
EVERYWHERE = FAST | SLOW


def vcpu(name, pcpus=EVERYWHERE, **known):
    found = {"demand_ratio": 1.0, "utilization_ratio": 1.0, "sampled": True, **known}
    return VcpuView((name, 0), pcpus, EVERYWHERE, **found)


def on_fast(policy, *vcpus, **params):
    """Names of the vCPUs that get the fast one of two pCPUs."""
    view = HostView(topology(), vcpus, dict.fromkeys(EVERYWHERE, 1.0))
    places = read_policy(policy, **params).decide(view).places
    return [key[0] for key, pcpus in places.items() if pcpus == FAST]


@pytest.mark.parametrize(
    ("policy", "known"),
    [
        ("acfs", "2.2, 3, 3.1"),
        ("hsp", "2.2"),
        ("prop-sp", "2.2"),
        ("eqp", "2.3"),
        ("aash", "5"),
        ("amp-vm", "2.1"),
        ("amp-vcpu", "2.1"),
        ("amp-r-fair", "2.1"),
    ],
)
def test_an_unknown_section_is_refused(policy, known):
    """The error names it and the sections that have a form of their own."""
    with pytest.raises(ConfigInvalid, match=f"printed=9 is not a section .* give {known},"):
        read_policy(policy, printed="9")


@pytest.mark.parametrize("policy", ["amp-vm", "amp-vcpu", "amp-r-fair"])
def test_kwon2011_scores_what_ran_not_what_wanted_to(policy):
    """Half of b's time went to waiting: as printed, that halves its score."""
    a, b = vcpu("a", ipc=0.9), vcpu("b", ipc=1.0, utilization_ratio=0.5)
    params = {"fair_ratio": 0.0} if policy == "amp-r-fair" else {}

    assert on_fast(policy, a, b, **params) == ["b"]
    assert on_fast(policy, a, b, printed="2.1", **params) == ["a"]


def test_kwon2011_scores_the_ipc_as_counted():
    """Half of its time on the fast core is waiting for memory, so b's IPC is 1 there, 1.67 here."""
    a = vcpu("a", SLOW, ipc=1.5, speedup=1.2, cpu_s=(2.5, 0.0))
    b = vcpu("b", FAST, ipc=1.0, speedup=1.2, cpu_s=(0.0, 2.5))

    assert on_fast("amp-vm", a, b) == ["b"]
    assert on_fast("amp-vm", a, b, printed="2.1") == ["a"]


@pytest.mark.parametrize("policy", ["hsp", "prop-sp"])
def test_saez2015_trusts_an_estimate_from_one_core_type(policy):
    """Ours tries a vCPU on both core types first: until then the shares are even."""
    a, b = vcpu("a", speedup=1.1, sampled=False), vcpu("b", speedup=3.0, sampled=False)

    assert on_fast(policy, a, b) == ["a"]
    assert on_fast(policy, a, b, printed="2.2") == ["b"]


def test_saez2015_aims_at_the_whole_unfairness_factor():
    """Ours keeps 5 % of it for what moves at intervals add."""
    guests = [guest(f"vm{i}", speed=s) for i, s in enumerate((4.0, 3.0, 2.0, 1.5))]
    host = scenario(*guests, duration_s=300.0, fast=2, slow=2, coefficient=4.0)

    ours = run(host, read_policy("acfs", unfairness_factor=1.3))
    theirs = run(host, read_policy("acfs", unfairness_factor=1.3, printed="3.1"))

    assert theirs.unfairness > ours.unfairness
    assert theirs.asp > ours.asp


def test_acfs_compares_threads_by_the_speedup_of_their_program():
    """Equation 3: programs of more threads than big cores look alike, and one has both cores."""
    guests = [guest("high", 6, speed=2.4), guest("low", 6, speed=1.8)]
    host = scenario(*guests, duration_s=200.0, fast=2, slow=10, coefficient=3.0)

    ours, theirs = (run(host, read_policy("acfs", printed=form)) for form in ("3.1", "3"))

    assert ours.unfairness < 1.02
    assert theirs.unfairness == pytest.approx(1.26, abs=0.04)  # in the long run
    assert theirs.vms["low"].fast_share < 0.02


@pytest.mark.parametrize(("printed", "like"), [("", "b"), ("3", "c")])
def test_a_newcomer_starts_at_the_greatest_virtual_time_as_printed(printed, like):
    """Note 4. Ours starts where vCPUs change places: between a, on the big core, and b."""
    names = {"a": 0.0, "b": 10.0, "c": 30.0, "new": None}
    keys = {n: (n, 0) if printed else n for n in names}
    host, everywhere = topology(slow=3), frozenset(range(4))
    vcpus = tuple(VcpuView((n, 0), everywhere, everywhere, demand_ratio=1.0) for n in names)
    memory = AcfsMemory({keys[n]: at_s for n, at_s in names.items() if at_s is not None})
    view = HostView(host, vcpus, dict.fromkeys(everywhere, 1.0), memory=memory)

    virtual_s = read_policy("acfs", printed=printed).decide(view).memory.virtual_s

    assert virtual_s[keys["new"]] == virtual_s[keys[like]]


def test_eqp_samples_every_thread_on_both_core_types():
    """As printed, even those that are owed no big-core time visit a big core once a minute."""
    guests = [guest(f"vm{i}", speed=s) for i, s in enumerate((3.0, 2.8, 1.05, 1.02))]
    host = scenario(*guests, duration_s=600.0, slow=3, coefficient=3.0)

    ours = run(host, read_policy("eqp"))
    theirs = run(host, read_policy("eqp", printed="2.3"))

    assert max(ours.vms[name].fast_share for name in ("vm2", "vm3")) < 0.02
    assert min(theirs.vms[name].fast_share for name in ("vm2", "vm3")) > 0.035


@pytest.mark.parametrize(("had", "moves"), [(1.0, 4), (0.05, 0)])
def test_an_instance_takes_turns(had, moves):
    """Those that had the fast cores give them to the others, unless they had hardly more."""
    host, everywhere = topology(fast=2, slow=2), frozenset(range(4))
    fast, slow = (frozenset(host.pcpus_of(name)) for name in ("fast", "slow"))
    on = [fast, fast, slow, slow]
    vcpus = tuple(
        VcpuView(("vm", i), pcpus, everywhere, demand_ratio=1.0) for i, pcpus in enumerate(on)
    )
    view = HostView(host, vcpus, dict.fromkeys(everywhere, 1.0))
    accounts = {
        v.key: DeficitAccount((), (), (), turn_ratio=had if v.pcpus == fast else 0.0) for v in vcpus
    }
    instances = {"vm": InstanceView(vcpus, 2.0, 4.0, (0.5, 0.5))}
    places = {v.key: v.pcpus for v in vcpus}

    turns = take_turns(view, places, instances, accounts)

    assert sum(turns[key] != pcpus for key, pcpus in places.items()) == moves
    assert sorted(map(sorted, turns.values())) == sorted(map(sorted, on))


def test_aash_shares_by_vcpu_as_printed():
    """Three vCPUs on one fast core: a third each, or half for the instance that has one."""
    host = scenario(guest("one"), guest("two", 2), duration_s=300.0, slow=2)

    ours = run(host, read_policy("aash")).vms
    theirs = run(host, read_policy("aash", printed="5")).vms

    assert [vm.fast_share for vm in ours.values()] == pytest.approx([0.5, 0.25], abs=0.02)
    assert [vm.fast_share for vm in theirs.values()] == pytest.approx([1 / 3, 1 / 3], abs=0.02)


def test_eqp_takes_the_ratio_of_samples_of_different_phases():
    """One half the other's IPC: a program of two phases seems to gain 1 or 4 of a true 2."""
    policy = read_policy("eqp", printed="2.3")
    seen = []
    view = HostView(topology(), (), dict.fromkeys(EVERYWHERE, 1.0), elapsed_s=2.5)
    for ipc, cpu_s in ((1.0, (2.5, 0.0)), (0.5, (0.0, 2.5))):
        view = replace(view, vcpus=(vcpu("a", ipc=ipc, cpu_s=cpu_s), vcpu("b")))
        decision = policy.decide(view)
        view = replace(view, memory=decision.memory)
        seen.append([s and s[0] for s in decision.memory.samples["a", 0]])

    assert seen == [[1.0, None], [1.0, 0.5]]
