# SPDX-License-Identifier: Apache-2.0
"""Core types from facts."""

from dataclasses import replace

import pytest

from amp_nova.exceptions import ConfigInvalid, TopologyUnknown
from amp_nova.hardware import operator_types
from amp_nova.hardware.designs import ARM_DESIGNS, INTEL_HYBRID_MODELS, NAME, MachineFacts
from amp_nova.hardware.detect import classify
from amp_nova.model import cpulist
from tests.support import machines
from tests.support.machines import (
    ICE_LAKE_SP,
    VERMEER,
    altered,
    changed,
    cores,
    fact,
    machine,
    without,
)

INTEL, LISTED = machines.intel_hybrid(), machines.intel_hybrid(pmus=True)
LAKEFIELD = {"vendor": "GenuineIntel", "family": 6, "model": 0x8A}
UNKNOWN_HYBRID = {"vendor": "GenuineIntel", "family": 6, "model": 0xFE, "hybrid": True}


def of(topology):
    """Name, pCPUs and coefficient of every core type, slowest first."""
    return [
        (t.name, cpulist.show(topology.pcpus_of(t.name)), t.coefficient and round(t.coefficient, 3))
        for t in topology.core_types
    ]


def lines(*texts):
    return [operator_types.parse(t) for t in texts]


def lists(**pmus):
    return tuple((name, frozenset(cpulist.parse(cpus))) for name, cpus in pmus.items())


def perf(facts, p_cores, e_cores):
    """An Intel hybrid whose firmware declares these speeds."""
    cpus = (changed(c, highest_perf=p_cores if c.id < 12 else e_cores) for c in facts.cpus)
    return replace(facts, cpus=tuple(cpus))


def halves(model, perfs, ghz):
    """Two pCPUs and two others, of one model."""
    return machine(
        *(
            cores(2, 2 * i, highest_perf=perfs[i], max_freq_khz=round(ghz[i] * 1e6), **model)
            for i in (0, 1)
        )
    )


def but_last(facts, *names):
    """The same machine; its last CPU came online before these files were there."""
    *others, last = facts.cpus
    return replace(facts, cpus=(*others, changed(last, **dict.fromkeys(names))))


COMPACT = halves(machines.STRIX_POINT, (132, 196), (3.31, 5.157))
HYBRID = [("e-core", "12-19", 1.0), ("p-core", "0-11", 1.641)]
UNMEASURED = [("e-core", "12-19", 1.0), ("p-core", "0-11", None)]
METEOR = [("lp-e-core", "16-17", 1.0), ("e-core", "8-15", 1.52), ("p-core", "0-7", 2.48)]
ONE = [("core", "0-3", 1.0)]
FIRMWARE, NOTHING = "declared by the firmware, not measured", "no trustworthy source gives the"

DETECTED = {
    # Favoured P-cores are P-cores. 64/39, not 67/39: a booking must be kept on any of them.
    "PMU lists": (LISTED, HYBRID, FIRMWARE),
    "without PMU lists": (INTEL, HYBRID, FIRMWARE),
    # Since 6.12 the kernel reports 1024 for every CPU of an x86 machine with SMT.
    "equal capacities": (altered(LISTED, capacity=1024), HYBRID, FIRMWARE),
    "firmware without data": (altered(LISTED, highest_perf=255), UNMEASURED, NOTHING),
    "P-cores 3 % faster are implausible": (perf(LISTED, 40, 39), UNMEASURED, NOTHING),
    "cpufreq alone": (without(INTEL, "highest_perf"), UNMEASURED, NOTHING),
    "CPPC alone": (without(INTEL, "max_freq_khz"), HYBRID, FIRMWARE),
    "low-power cores among the E-cores": (machines.meteor_lake(), METEOR, FIRMWARE),
    "low-power cores without lists": (machines.meteor_lake(pmus=False), METEOR, FIRMWARE),
    "low-power cores in a list": (
        replace(
            machines.meteor_lake(),
            pmus=lists(cpu_core="0-7", cpu_atom="8-15", cpu_lowpower="16-17"),
        ),
        METEOR,
        FIRMWARE,
    ),
    # 2.8 and 3.0 GHz at most, but 1.4 and 2.0 GHz guaranteed.
    "base frequencies confirm": (
        machine(
            cores(4, highest_perf=28, max_freq_khz=2.8e6, base_freq_khz=1.4e6, **LAKEFIELD),
            cores(1, 4, highest_perf=43, max_freq_khz=3e6, base_freq_khz=2e6, **LAKEFIELD),
        ),
        [("e-core", "0-3", 1.0), ("p-core", "4", 1.536)],
        FIRMWARE,
    ),
    # Six of 24 cores have a higher guaranteed clock; at most all of them run at 3.9 GHz.
    "Intel Speed Select": (
        machine(
            cores(18, max_freq_khz=3.9e6, base_freq_khz=2.1e6, **machines.ICE_LAKE_SP),
            cores(6, 18, max_freq_khz=3.9e6, base_freq_khz=2.7e6, **machines.ICE_LAKE_SP),
        ),
        [("core", "0-23", 1.0)],
        "cpufreq base_frequency within one core type ranges from 2.10 GHz (pCPUs 0-17) to 2.70",
    ),
    "clocks in small steps": (
        machine(*(cores(4, 4 * i, max_freq_khz=f * 1e6) for i, f in enumerate((2.0, 2.2, 2.4)))),
        [("core", "0-11", 1.0)],
        "cpufreq within one core type ranges from 2.00 GHz (pCPUs 0-3) to 2.40 GHz",
    ),
    "capacities in small steps": (
        machine(*(cores(2, 2 * i, capacity=c) for i, c in enumerate((850, 930, 1024)))),
        [("core", "0-5", 1.0)],
        "cpu_capacity within one core type ranges from 850 (pCPUs 0-1) to 1024",
    ),
    "a CPU without a base frequency": (
        machine(
            cores(1, max_freq_khz=3.9e6, **machines.ICE_LAKE_SP),
            cores(2, 1, max_freq_khz=3.9e6, base_freq_khz=2.1e6, **machines.ICE_LAKE_SP),
            cores(1, 3, max_freq_khz=3.9e6, base_freq_khz=2.7e6, **machines.ICE_LAKE_SP),
        ),
        [("core", "0-3", 1.0)],
        "cpufreq base_frequency within one core type ranges from 2.10 GHz (pCPUs 1-2) to 2.70",
    ),
    "P-cores of a model without E-cores": (
        machine(cores(4, highest_perf=64, max_freq_khz=4.3e6, **machines.RAPTOR_LAKE_P)),
        ONE,
        None,
    ),
    "all E-cores offline": (
        machines.intel_hybrid(pmus=True, offline=range(12, 20)),
        [("p-core", "0-11", 1.0)],
        "set [topology] reference",
    ),
    "guest of a hybrid": (
        machine(cores(4, virtual=True, **machines.RAPTOR_LAKE_P)),
        ONE,
        "virtual machine",
    ),
    "boost disabled on some": (
        halves(ICE_LAKE_SP, (47, 47), (2, 4)),
        ONE,
        "cpufreq puts pCPUs 0-1 below 2-3",
    ),
    "firmware alone sees a gap": (
        halves(ICE_LAKE_SP, (30, 60), (4, 4)),
        ONE,
        "ACPI CPPC highest_perf puts pCPUs 0-1 below 2-3",
    ),
    # AMD's highest_perf is a ranking, in steps of 3 % or with gaps: no speed.
    "ranked AMD": (machines.amd_ranked(), [("core", "0-31", 1.0)], None),
    "ranked AMD with a gap": (halves(VERMEER, (166, 236), (4.9, 4.9)), ONE, None),
    "ranked AMD without frequencies": (
        without(halves(VERMEER, (166, 236), (4.9, 4.9)), "max_freq_khz"),
        ONE,
        None,
    ),
    # 1.095: the dies differ in cache more than in speed.
    "X3D dies": (halves(VERMEER, (186, 231), (5.25, 5.75)), ONE, None),
    "Zen and Zen-c": (
        machines.zen_dense(),
        [("slow", "8-23", 1.0), ("fast", "0-7", None)],
        NOTHING,
    ),
    "four Arm designs, two of one capacity": (
        machines.arm_four(),
        [
            ("cortex-a510", "0-2", 1.0),
            ("cortex-a710", "5-6", 3.054),
            ("cortex-a715", "3-4", 3.054),
            ("cortex-x3", "7", 3.657),
        ],
        None,
    ),
    "slower design with a higher clock": (
        machines.arm_big_little(),
        [("cortex-a53", "2-5", 1.0), ("cortex-a73", "0-1", 2.197)],
        None,
    ),
    "prime core": (
        machines.arm_prime(),
        [
            ("kryo-4xx-silver", "0-3", 1.0),
            ("kryo-4xx-gold-slow", "4-6", 3.337),
            ("kryo-4xx-gold-fast", "7", 3.923),
        ],
        None,
    ),
    # Clusters that differ by 2 %: a type is as fast as its slowest CPU.
    "capacities that hardly differ": (
        machine(
            cores(5, 0, capacity=718, implementer=0x41, part=0xD87),
            cores(5, 5, capacity=997, implementer=0x41, part=0xD85),
            cores(5, 10, capacity=731, implementer=0x41, part=0xD87),
            cores(5, 15, capacity=1024, implementer=0x41, part=0xD85),
        ),
        [("cortex-a725", "0-4,10-14", 1.0), ("cortex-x925", "5-9,15-19", 1.389)],
        None,
    ),
    "line-up without capacity": (
        without(machines.arm_prime(), "capacity", "max_freq_khz"),
        [("kryo-4xx-silver", "0-3", 1.0), ("kryo-4xx-gold", "4-7", None)],
        NOTHING,
    ),
    "capacities alone": (
        without(machines.arm_four(), "implementer", "part"),
        [("slow", "0-2", 1.0), ("medium", "3-6", 3.054), ("fast", "7", 3.657)],
        None,
    ),
    "more speeds than words": (
        machine(*(cores(1, i, capacity=128 << i) for i in range(4))),
        [(f"speed-{i + 1}", str(i), float(1 << i)) for i in range(4)],
        None,
    ),
    "unknown part": (
        machine(cores(4, implementer=0x41, part=0xFFF)),
        [("arm-41-fff", "0-3", 1.0)],
        None,
    ),
    "one CPU without a model": (
        machine(cores(3, implementer=0x41, part=0xD0C), cores(1, 3)),
        [("neoverse-n1", "0-3", 1.0)],
        "pCPUs 3 do not report their CPU model",
    ),
    # A file with 0 holds no value, and one that only some CPUs have tells nothing of the others.
    "one CPU without its clock, the others equal": (
        but_last(machines.server(), "max_freq_khz"),
        [("core", "0-127", 1.0)],
        "cpufreq is known of some CPUs, but says nothing of pCPUs 127; if they differ in speed",
    ),
    "slow CPUs without any files": (
        machine(cores(2, highest_perf=196, max_freq_khz=5.1e6, **VERMEER), cores(2, 2, **VERMEER)),
        ONE,
        "ACPI CPPC highest_perf is known of some CPUs, but says nothing of pCPUs 2-3",
    ),
    "guest of a hybrid with clocks": (
        machine(cores(4, virtual=True, max_freq_khz=2.6e6, **machines.RAPTOR_LAKE_P)),
        ONE,
        "virtual machine",
    ),
    "RISC-V": (
        machine(
            cores(4, 0, uarch="spacemit,x60", capacity=500),
            cores(4, 4, uarch="spacemit,x100", capacity=1000),
        ),
        [("spacemit-x60", "0-3", 1.0), ("spacemit-x100", "4-7", 2.0)],
        None,
    ),
    "server": (machines.server(), [("core", "0-127", 1.0)], None),
    "virtual machine without facts": (machines.bare_vm(), ONE, None),
}


@pytest.mark.parametrize(("facts", "expected", "warning"), DETECTED.values(), ids=DETECTED)
def test_core_types_are_detected(facts, expected, warning):
    """Slowest first, with the coefficients that a trustworthy source declares."""
    topology = classify(facts)

    assert of(topology) == expected
    assert topology.reference == expected[0][0]
    assert [warning in w for w in topology.warnings] == ([] if warning is None else [True])


@pytest.mark.parametrize(
    ("facts", "source", "coefficient_sources"),
    [
        (LISTED, "PMU lists cpu_core, cpu_atom", ["reference core", "ACPI CPPC highest_perf"]),
        (INTEL, "ACPI CPPC highest_perf and cpufreq", ["reference core", "ACPI CPPC highest_perf"]),
        (without(INTEL, "highest_perf"), "cpufreq", ["reference core", None]),
        (
            machines.arm_four(),
            "CPU implementer and part, cpu_capacity",
            ["reference core", *["cpu_capacity"] * 3],
        ),
        (machines.bare_vm(), "nothing tells the CPUs apart", ["only core type"]),
    ],
)
def test_the_sources_are_named(facts, source, coefficient_sources):
    """That of the division and those of the coefficients."""
    topology = classify(facts)

    assert topology.source == source
    assert [t.coefficient_source for t in topology.core_types] == coefficient_sources


REFUSED = {
    "overlapping lists": (
        replace(INTEL, pmus=lists(cpu_core="0-12", cpu_atom="12-19")),
        r"pCPUs 12 are in .* cpu_core and of cpu_atom",
    ),
    "incomplete lists": (
        replace(INTEL, pmus=lists(cpu_core="0-11")),
        r"pCPUs 12-19 are not in .*core_type",
    ),
    "firmware against PMU lists": (
        perf(LISTED, 40, 60),
        r"e-core .pCPUs 12-19. is faster than p-core",
    ),
    "hybrid model, no source": (
        without(INTEL, "highest_perf", "max_freq_khz", "base_freq_khz"),
        r"hybrid.*0-19.*\[topology\] core_type",
    ),
    "CPU says that it is hybrid": (machine(cores(4, max_freq_khz=3e6, **UNKNOWN_HYBRID)), "hybrid"),
    "hybrid, frequencies alone differ": (
        altered(INTEL, highest_perf=50),
        "cpufreq puts pCPUs 12-19 below 0-11",
    ),
    "one CPU without its clock": (
        but_last(COMPACT, "max_freq_khz"),
        r"cpufreq tells CPUs apart, but says nothing of pCPUs 3; name the core types",
    ),
    "one CPU without a capacity": (
        but_last(machine(cores(3, 0, capacity=650), cores(3, 3, capacity=1024)), "capacity"),
        "cpu_capacity tells CPUs apart, but says nothing of pCPUs 5",
    ),
    "one CPU whose clock is 0": (
        replace(COMPACT, cpus=(*COMPACT.cpus[:3], changed(COMPACT.cpus[3], max_freq_khz=0))),
        "cpufreq tells CPUs apart, but says nothing of pCPUs 3",
    ),
    "one CPU whose capacity is 0": (
        machine(cores(2, capacity=650), cores(2, 2, capacity=1024), cores(1, 4, capacity=0)),
        "cpu_capacity tells CPUs apart, but says nothing of pCPUs 4",
    ),
    # A container's /proc/cpuinfo numbers its own CPUs from 0.
    "CPUs without a model of another capacity": (
        machine(cores(4, capacity=414, implementer=0x41, part=0xD0B), cores(4, 4, capacity=1024)),
        "pCPUs 4-7 do not report their CPU model and differ in package, cluster or capacity",
    ),
    "opposite sources": (halves(ICE_LAKE_SP, (30, 60), (4, 2)), "does not confirm"),
    "frequencies of two designs": (
        machine(
            cores(4, 0, max_freq_khz=4e6, **VERMEER),
            cores(4, 4, max_freq_khz=2e6, **machines.STRIX_POINT),
        ),
        r"amd-25-33 on pCPUs 0-3; amd-26-36 on pCPUs 4-7",
    ),
    "designs of one rank": (
        without(machines.arm_four(), "capacity"),
        r"cortex-a715 on pCPUs 3-4; cortex-a710",
    ),
    "capacity against CPPC": (
        machine(
            cores(2, 0, capacity=500, highest_perf=90, implementer=0x41, part=0xD05),
            cores(2, 2, capacity=1024, highest_perf=60, implementer=0x41, part=0xD0B),
        ),
        "ACPI CPPC highest_perf says that cortex-a55",
    ),
    "CPU without a model beside several": (
        machine(machines.arm_four().cpus, cores(1, 8, capacity=1024)),
        "pCPUs 8 do not report",
    ),
    "CPU without a model in another cluster": (
        machine(cores(4, 0, implementer=0x41, part=0xD03, cluster=0), cores(2, 4, cluster=1)),
        "pCPUs 4-5 do not report their CPU model and differ in package, cluster or capacity",
    ),
    "no online CPU": (machines.server(offline=range(128)), "no online CPU"),
}


@pytest.mark.parametrize(("facts", "match"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_determined_is_refused(facts, match):
    """The sentence names what was found, and asks the operator to declare the core types."""
    with pytest.raises(TopologyUnknown, match=match):
        classify(facts)


def test_a_source_that_says_nothing_of_some_cpus_is_named():
    """If another one tells them apart."""
    topology = classify(but_last(COMPACT, "highest_perf"))

    assert len(topology.core_types) == 2
    assert (
        "ACPI CPPC highest_perf tells CPUs apart, but says nothing of pCPUs 3" in topology.warnings
    )


def test_threads_and_caches_are_those_of_the_machine():
    """With the isolated CPUs; core ids repeat in every package."""
    topology = classify(machines.server(isolated=[2, 3]))

    assert topology.core_types[0].threads_per_core == 2
    assert topology.pcpus[65].siblings == (1, 65)
    assert topology.pcpus[40].llc == 32
    assert [p.id for p in topology.pcpus if p.isolated] == [2, 3]
    cpus = [fact(i, package=i % 2, core_id=i // 4) for i in range(8)]
    assert classify(MachineFacts(tuple(cpus))).pcpus[5].siblings == (5, 7)
    early = machine(cores(1, 0, 2), [fact(2, siblings=(2, 3)), fact(3)])
    assert [p.siblings for p in classify(early).pcpus] == [(0, 1)] * 2 + [(2, 3)] * 2


def test_offline_cpus_do_not_count():
    """Even CPU 0 may be offline; siblings and threads per core include online CPUs only."""
    topology = classify(machines.server(offline=[0, *range(65, 128)]))

    assert topology.offline == (0, *range(65, 128))
    assert (topology.pcpus[0].id, topology.pcpus[0].siblings) == (1, (1,))
    assert topology.core_types[0].threads_per_core == 1


def test_every_built_in_name_is_a_valid_trait():
    """Names are unique and acceptable to Placement."""
    names = [name for name, _ in ARM_DESIGNS.values()]

    assert len(set(names)) == len(names)
    assert all(NAME.fullmatch(n) for n in names)
    assert 0xBE not in INTEL_HYBRID_MODELS  # E-cores only


def test_the_nominal_clock_is_the_base_frequency():
    """The lowest one of the type's CPUs, if all report one."""
    clocks = {t.name: t.clock_hz for t in classify(INTEL).core_types}

    assert sorted(clocks.values()) == [1.4e9, 1.9e9]


def test_another_core_may_be_the_reference():
    """Slower types are below 1; only a calibration compares this machine with another one."""
    assert of(classify(INTEL, reference="p-core")) == [
        ("e-core", "12-19", 0.609),
        ("p-core", "0-11", 1.0),
    ]
    elsewhere = classify(machines.server(), reference="old-xeon")
    assert (elsewhere.reference, of(elsewhere)) == ("old-xeon", [("core", "0-127", None)])


BARE = machines.bare_vm()
CONFIGURED = {
    # Even over PMU lists; types are slowest first regardless of the order of lines.
    "overrides detection": (
        LISTED,
        ["big 0-11 1.85", "small 12-19"],
        None,
        [("small", "12-19", 1.0), ("big", "0-11", 1.85)],
        "small",
    ),
    "missing coefficient is detected": (
        INTEL,
        ["big 0-11", "small 12-19"],
        None,
        [("small", "12-19", 1.0), ("big", "0-11", 1.641)],
        "small",
    ),
    "no order: as written": (
        BARE,
        ["one 0-1", "two 2-3"],
        None,
        [("one", "0-1", 1.0), ("two", "2-3", None)],
        "one",
    ),
    # The configuration stays valid during CPU hotplug.
    "type without online CPUs": (
        machines.server(offline=range(64, 128)),
        ["fast 0-63 2", "slow 64-127"],
        None,
        [("fast", "0-63", 2.0)],
        "slow",
    ),
    "coefficient 1 is the reference": (
        BARE,
        ["a 0-1 0.5", "b 2-3 1.0"],
        None,
        [("a", "0-1", 0.5), ("b", "2-3", 1.0)],
        "b",
    ),
    "named reference needs no coefficient": (
        BARE,
        ["a 0-1", "b 2-3 0.5"],
        "a",
        [("b", "2-3", 0.5), ("a", "0-1", 1.0)],
        "a",
    ),
    "reference elsewhere": (
        BARE,
        ["a 0-1 2", "b 2-3 3"],
        "old-xeon",
        [("a", "0-1", 2.0), ("b", "2-3", 3.0)],
        "old-xeon",
    ),
}


@pytest.mark.parametrize(
    ("facts", "texts", "reference", "expected", "is_reference"), CONFIGURED.values(), ids=CONFIGURED
)
def test_the_configuration_counts_first(facts, texts, reference, expected, is_reference):
    """With the coefficients and the reference core that follow from it."""
    topology = classify(facts, lines(*texts), reference)

    assert (of(topology), topology.reference) == (expected, is_reference)
    assert topology.source == operator_types.SOURCE


@pytest.mark.parametrize(
    ("texts", "reference", "match"),
    [
        (["fast"], None, "'fast' must be 'NAME CPUS"),
        (["fast 0-3 1.0 x"], None, "must be 'NAME CPUS"),
        (["fast 0-3 cores=2"], None, "must be 'NAME CPUS"),
        (["fast 0-2 threads=2"], None, "threads=2, which must be 1, 2, 4 or 8 and divide its 3"),
        (["fast 0-2 threads=3"], None, "threads=3, which must be 1, 2, 4 or 8"),
        (["fast 0-3 smt=1.5"], None, "smt=1.5, which must be a number from 0.1 to 1"),
        (["fast 0-3 smt=nan"], None, "smt=nan, which must be a number from 0.1 to 1"),
        (["Fast 0-3"], None, "'Fast' must consist of lower-case"),
        (["fast 0-x"], None, "'x' is not a CPU id"),
        (["fast 0-3 quick"], None, "coefficient 'quick'"),
        (["fast 0-3 nan"], None, "coefficient 'nan'"),
        (["fast 0-3 -1"], None, "coefficient '-1'"),
        (["fast 0-3", "fast 0-3"], None, "fast is given twice"),
        (["fast 0-9"], None, "names pCPUs 4-9, which this machine does not have; it has 0-3"),
        (["fast 0-2", "slow 2-3"], None, "names pCPU 2 twice, for fast and slow"),
        (["fast 0-1"], None, "leaves out online pCPUs 2-3"),
        (["fast 0-1 2", "slow 2-3 1.5"], None, "no type the coefficient 1"),
        (["fast 0-1 2", "slow 2-3"], "fast", "fast has coefficient 2, but it is the reference"),
    ],
)
def test_the_error_names_the_value(texts, reference, match):
    """One sentence with the offending value."""
    with pytest.raises(ConfigInvalid, match=match):
        classify(BARE, lines(*texts), reference)


@pytest.mark.parametrize(
    ("facts", "one_type"),
    [
        (machines.arm_big_little(), True),
        (machines.arm_prime(), True),
        (machine(cores(4, capacity=446, part=0xD05, implementer=0x41)), False),
        (machines.intel_hybrid(pmus=True), False),
        (machines.zen_dense(), False),
    ],
)
def test_only_arm_guests_cannot_span_designs(facts, one_type):
    """KVM cannot give a vCPU the registers of another design there."""
    assert classify(facts).one_type is one_type
