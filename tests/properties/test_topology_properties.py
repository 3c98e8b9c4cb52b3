# SPDX-License-Identifier: Apache-2.0
"""Properties of the core types of every machine."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.exceptions import TopologyUnknown
from amp_nova.hardware.designs import NAME, MachineFacts
from amp_nova.hardware.detect import classify
from amp_nova.model import cpulist
from tests.support import machines

KINDS = [
    machines.intel_hybrid(pmus=True),
    machines.intel_hybrid(),
    machines.meteor_lake(),
    machines.arm_four(),
    machines.arm_prime(),
    machines.amd_ranked(),
    machines.zen_dense(),
    machines.server(),
    machines.bare_vm(8),
]
known_machines = st.sampled_from(KINDS)


def maybe(strategy):
    return st.none() | strategy


@st.composite
def any_machines(draw):
    """Machines that report anything at all, true or not."""
    count = draw(st.integers(1, 8))
    models = st.sampled_from(
        [
            {},
            machines.RAPTOR_LAKE_P,
            machines.VERMEER,
            {"implementer": 0x41, "part": 0xD05},
            {"implementer": 0x41, "part": 0xD0B},
            {"uarch": "x60"},
        ]
    )
    speeds = st.integers(0, 5).map(lambda n: n * 200)
    cpus = [
        machines.fact(
            i,
            online=draw(st.booleans()),
            siblings=tuple(draw(st.lists(st.integers(0, 9), max_size=3))),
            package=draw(maybe(st.integers(0, 1))),
            core_id=draw(maybe(st.integers(0, 3))),
            capacity=draw(maybe(speeds)),
            highest_perf=draw(maybe(speeds)),
            max_freq_khz=draw(maybe(speeds)),
            hybrid=draw(st.booleans()),
            **draw(models),
        )
        for i in range(count)
    ]
    ids = st.frozensets(st.integers(0, count - 1))
    names = draw(st.lists(st.sampled_from(["cpu_core", "cpu_atom", "cpu_lowpower"]), unique=True))
    return MachineFacts(tuple(cpus), tuple((n, draw(ids)) for n in names))


@given(any_machines())
def test_every_online_cpu_is_of_one_type_or_the_machine_is_refused(facts):
    """There is no third outcome, whatever a machine reports; slower types come first."""
    try:
        topology = classify(facts)
    except TopologyUnknown:
        return

    assert [p.id for p in topology.pcpus] == [c.id for c in facts.cpus if c.online]
    assert sorted(i for t in topology.core_types for i in topology.pcpus_of(t.name)) == [
        p.id for p in topology.pcpus
    ]
    assert topology.offline == tuple(c.id for c in facts.cpus if not c.online)
    assert all(NAME.fullmatch(t.name) for t in topology.core_types)
    assert len({t.name for t in topology.core_types}) == len(topology.core_types)
    assert all(topology.pcpus_of(t.name) for t in topology.core_types)
    assert all(p.id in p.siblings for p in topology.pcpus)
    assert topology.core_type(topology.reference).coefficient == 1.0
    known = [t.coefficient for t in topology.core_types if t.coefficient is not None]
    assert known == sorted(known)


@given(known_machines, st.data())
def test_numbering_does_not_matter(facts, data):
    """Renumbering the CPUs renumbers the result and changes nothing else."""
    new = dict(enumerate(data.draw(st.permutations(range(len(facts.cpus))))))
    cpus = [
        replace(c, id=new[c.id], siblings=tuple(sorted(new[s] for s in c.siblings)))
        for c in facts.cpus
    ]
    lists = tuple((name, frozenset(new[i] for i in ids)) for name, ids in facts.pmus)

    before = classify(facts)
    after = classify(MachineFacts(tuple(sorted(cpus, key=lambda c: c.id)), lists))

    assert after.core_types == before.core_types
    assert after.source == before.source
    for t in before.core_types:
        assert after.pcpus_of(t.name) == {new[i] for i in before.pcpus_of(t.name)}


@given(st.frozensets(st.integers(0, 300)))
def test_shown_lists_read_back(cpus):
    """A list that amp-nova writes can be read again."""
    assert cpulist.parse(cpulist.show(cpus)) == tuple(sorted(cpus))
