"""Core types from facts."""

from dataclasses import replace

import pytest

from amp_nova.exceptions import CalibrationInvalid, ConfigInvalid, TopologyUnknown
from amp_nova.hardware import operator_types
from amp_nova.hardware.coefficients import with_coefficients
from amp_nova.hardware.designs import ARM_DESIGNS, INTEL_HYBRID_MODELS, NAME, MachineFacts
from amp_nova.hardware.detect import classify
from tests import machines
from tests.machines import altered, changed, cores, fact, machine, without


def types(topology):
    """Name and pCPUs of every core type, slowest first."""
    return [(t.name, sorted(topology.pcpus_of(t.name))) for t in topology.core_types]


def coefficients(topology):
    return {
        t.name: t.coefficient if t.coefficient is None else round(t.coefficient, 3)
        for t in topology.core_types
    }


def lines(*texts):
    return [operator_types.parse(t) for t in texts]


HYBRID = [("e-core", list(range(12, 20))), ("p-core", list(range(12)))]


class TestIntel:
    def test_pmu_lists_tell_p_and_e_cores(self):
        """The kernel's PMU lists divide the CPUs, and favoured P-cores are P-cores."""
        topology = classify(machines.intel_hybrid(pmus=True))

        assert types(topology) == HYBRID
        assert topology.source == "PMU lists cpu_core, cpu_atom"
        assert topology.reference == "e-core"
        assert [t.threads_per_core for t in topology.core_types] == [1, 2]

    def test_without_pmu_lists_cppc_and_cpufreq_divide(self):
        """A recording or an old kernel has no PMU lists; the names stay the same."""
        topology = classify(machines.intel_hybrid())

        assert types(topology) == HYBRID
        assert topology.source == "ACPI CPPC highest_perf and cpufreq"

    def test_the_firmware_gives_the_coefficient_of_the_slowest_member(self):
        """64/39, not 67/39: a booking must be kept on any P-core. A warning names the source."""
        topology = classify(machines.intel_hybrid())

        assert coefficients(topology) == {"e-core": 1.0, "p-core": 1.641}
        assert topology.core_type("e-core").coefficient_source == "reference core"
        assert topology.core_type("p-core").coefficient_source == "ACPI CPPC highest_perf"
        assert "declared by the firmware, not measured" in topology.warnings[0]

    def test_equal_capacities_are_ignored(self):
        """Since 6.12 the kernel reports 1024 for every CPU of an x86 machine with SMT."""
        facts = machines.intel_hybrid(pmus=True)
        facts = altered(facts, capacity=1024)

        topology = classify(facts)

        assert types(topology) == HYBRID
        assert coefficients(topology)["p-core"] == 1.641

    def test_unknown_perf_gives_no_coefficient(self):
        """If firmware reports 255 everywhere, PMU lists divide but nothing gives a coefficient."""
        facts = machines.intel_hybrid(pmus=True)
        facts = altered(facts, highest_perf=255)

        topology = classify(facts)

        assert types(topology) == HYBRID
        assert coefficients(topology) == {"e-core": 1.0, "p-core": None}
        assert "no trustworthy source gives the coefficient of p-core" in topology.warnings[0]

    def test_nearly_equal_perf_gives_no_coefficient(self):
        """A P-core that is 3 % faster than an E-core is implausible."""
        facts = machines.intel_hybrid(pmus=True)
        cpus = tuple(changed(c, highest_perf=40 if c.id < 12 else 39) for c in facts.cpus)

        assert coefficients(classify(replace(facts, cpus=cpus)))["p-core"] is None

    @pytest.mark.parametrize("pmus", [True, False])
    def test_low_power_cores_are_a_type(self, pmus):
        """Meteor Lake has three core types, two of which share a PMU list."""
        topology = classify(machines.meteor_lake(pmus))

        assert types(topology) == [
            ("lp-e-core", [16, 17]),
            ("e-core", list(range(8, 16))),
            ("p-core", list(range(8))),
        ]
        assert coefficients(topology) == {"lp-e-core": 1.0, "e-core": 1.52, "p-core": 2.48}

    def test_low_power_cores_may_have_a_list_of_their_own(self):
        """cpu_lowpower, where it exists, lists the low-power cores."""
        facts = replace(
            machines.meteor_lake(),
            pmus=(
                ("cpu_core", frozenset(range(8))),
                ("cpu_atom", frozenset(range(8, 16))),
                ("cpu_lowpower", frozenset({16, 17})),
            ),
        )

        assert [n for n, _ in types(classify(facts))] == ["lp-e-core", "e-core", "p-core"]

    def test_base_frequencies_confirm_where_maximum_frequencies_are_close(self):
        """Lakefield: 2.8 and 3.0 GHz at most, but 1.4 and 2.0 GHz guaranteed."""
        model = {"vendor": "GenuineIntel", "family": 6, "model": 0x8A}
        slow = {"highest_perf": 28, "max_freq_khz": 2_800_000, "base_freq_khz": 1_400_000}
        fast = {"highest_perf": 43, "max_freq_khz": 3_000_000, "base_freq_khz": 2_000_000}

        topology = classify(machine(cores(4, 0, **slow, **model), cores(1, 4, **fast, **model)))

        assert types(topology) == [("e-core", [0, 1, 2, 3]), ("p-core", [4])]

    def test_p_cores_alone_are_one_type(self):
        """A model without E-cores is homogeneous."""
        model = machines.RAPTOR_LAKE_P
        facts = machine(cores(4, 0, 2, highest_perf=64, max_freq_khz=4_300_000, **model))

        assert types(classify(facts)) == [("core", list(range(8)))]

    def test_only_cpu_core_is_one_type(self):
        """With all E-cores offline the P-cores keep their name, and a warning says so."""
        topology = classify(machines.intel_hybrid(pmus=True, offline=range(12, 20)))

        assert types(topology) == [("p-core", list(range(12)))]
        assert topology.offline == tuple(range(12, 20))
        assert coefficients(topology) == {"p-core": 1.0}
        assert "set [topology] reference" in topology.warnings[0]

    def test_overlapping_lists_are_refused(self):
        """A CPU cannot be a P-core and an E-core."""
        facts = replace(
            machines.intel_hybrid(),
            pmus=(("cpu_core", frozenset(range(13))), ("cpu_atom", frozenset(range(12, 20)))),
        )

        with pytest.raises(TopologyUnknown, match=r"pCPUs 12 are in .* cpu_core and of cpu_atom"):
            classify(facts)

    def test_incomplete_lists_are_refused(self):
        """The core type of a CPU in no list is unknown."""
        facts = replace(machines.intel_hybrid(), pmus=(("cpu_core", frozenset(range(12))),))

        with pytest.raises(TopologyUnknown, match=r"pCPUs 12-19 are not in .*core_type"):
            classify(facts)

    def test_a_contradicted_order_is_refused(self):
        """Firmware that ranks the E-cores above the P-cores contradicts the PMU lists."""
        facts = machines.intel_hybrid(pmus=True)
        cpus = tuple(changed(c, highest_perf=40 if c.id < 12 else 60) for c in facts.cpus)

        with pytest.raises(TopologyUnknown, match=r"e-core .pCPUs 12-19. is faster than p-core"):
            classify(replace(facts, cpus=cpus))

    def test_a_hybrid_without_any_source_is_refused(self):
        """A hybrid model has more than one core type, even if nothing divides its CPUs."""
        facts = without(machines.intel_hybrid(), "highest_perf", "max_freq_khz", "base_freq_khz")

        with pytest.raises(TopologyUnknown, match=r"hybrid.*0-19.*\[topology\] core_type"):
            classify(facts)

    def test_a_cpu_that_says_it_is_hybrid_is_believed(self):
        """Even if its model is unknown and all cores look alike."""
        model = {"vendor": "GenuineIntel", "family": 6, "model": 0xFE, "hybrid": True}

        with pytest.raises(TopologyUnknown, match="hybrid"):
            classify(machine(cores(4, max_freq_khz=3_000_000, **model)))

    def test_a_guest_of_a_hybrid_is_warned(self):
        """A virtual machine cannot tell its cores apart; it remains usable for development."""
        facts = machine(cores(4, virtual=True, **machines.RAPTOR_LAKE_P))

        topology = classify(facts)

        assert types(topology) == [("core", [0, 1, 2, 3])]
        assert "virtual machine" in topology.warnings[0]

    def test_a_hybrid_with_disagreeing_sources_is_refused(self):
        """Equal highest_perf and a gap in frequency: one of them is wrong."""
        facts = machines.intel_hybrid()
        facts = altered(facts, highest_perf=50)

        with pytest.raises(TopologyUnknown, match=r"cpufreq puts pCPUs 12-19 below 0-11"):
            classify(facts)

    def test_opposite_sources_are_refused(self):
        """CPPC and cpufreq must not contradict each other."""
        model = machines.ICE_LAKE_SP
        facts = machine(
            cores(2, 0, highest_perf=30, max_freq_khz=4_000_000, **model),
            cores(2, 2, highest_perf=60, max_freq_khz=2_000_000, **model),
        )

        with pytest.raises(TopologyUnknown, match="does not confirm"):
            classify(facts)

    def test_one_source_against_another_does_not_divide(self):
        """Disabled boost on some cores makes no core type, but a warning."""
        model = machines.ICE_LAKE_SP
        facts = machine(
            cores(2, 0, highest_perf=47, max_freq_khz=2_000_000, **model),
            cores(2, 2, highest_perf=47, max_freq_khz=4_000_000, **model),
        )

        topology = classify(facts)

        assert types(topology) == [("core", [0, 1, 2, 3])]
        assert "cpufreq puts pCPUs 0-1 below 2-3" in topology.warnings[0]

    def test_a_declared_gap_without_a_frequency_gap_does_not_divide(self):
        """highest_perf differs, frequencies do not."""
        model = machines.ICE_LAKE_SP
        facts = machine(
            cores(2, 0, highest_perf=30, max_freq_khz=4_000_000, **model),
            cores(2, 2, highest_perf=60, max_freq_khz=4_000_000, **model),
        )

        topology = classify(facts)

        assert types(topology) == [("core", [0, 1, 2, 3])]
        assert "ACPI CPPC highest_perf puts pCPUs 0-1 below 2-3" in topology.warnings[0]

    def test_one_source_alone_divides(self):
        """CPPC or cpufreq suffices if the other is missing; cpufreq gives no coefficient."""
        facts = without(machines.intel_hybrid(), "highest_perf")
        assert types(topology := classify(facts)) == HYBRID
        assert coefficients(topology) == {"e-core": 1.0, "p-core": None}
        assert topology.source == "cpufreq"

        facts = without(machines.intel_hybrid(), "max_freq_khz")
        assert types(topology := classify(facts)) == HYBRID
        assert topology.source == "ACPI CPPC highest_perf"


class TestAmd:
    def test_a_ranking_is_not_a_speed(self):
        """Steps of 3 % from 166 to 236 are one core type."""
        topology = classify(machines.amd_ranked())

        assert types(topology) == [("core", list(range(32)))]
        assert not topology.warnings

    def test_a_gap_in_a_ranking_is_not_a_speed(self):
        """A ranking with gaps is still a ranking unless frequencies confirm the gaps."""
        facts = machine(
            cores(2, 0, highest_perf=166, max_freq_khz=4_900_000, **machines.VERMEER),
            cores(2, 2, highest_perf=236, max_freq_khz=4_900_000, **machines.VERMEER),
        )

        assert len((topology := classify(facts)).core_types) == 1
        assert not topology.warnings
        assert len(classify(without(facts, "max_freq_khz")).core_types) == 1

    def test_x3d_dies_are_one_type(self):
        """5.75 against 5.25 GHz is 1.095: the dies differ in cache more than in speed."""
        facts = machine(
            cores(8, 0, 2, highest_perf=186, max_freq_khz=5_250_000, **machines.VERMEER),
            cores(8, 16, 2, highest_perf=231, max_freq_khz=5_750_000, **machines.VERMEER),
        )

        assert len(classify(facts).core_types) == 1

    def test_dense_cores_are_slow_and_have_no_coefficient(self):
        """Zen and Zen-c differ by 1.5 in both sources, but AMD's do not measure speed."""
        topology = classify(machines.zen_dense())

        assert types(topology) == [("slow", list(range(8, 24))), ("fast", list(range(8)))]
        assert coefficients(topology) == {"slow": 1.0, "fast": None}

    def test_two_models_without_an_order_are_refused(self):
        """Frequencies of different designs cannot be compared."""
        facts = machine(
            cores(4, 0, max_freq_khz=4_000_000, **machines.VERMEER),
            cores(4, 4, max_freq_khz=2_000_000, **machines.STRIX_POINT),
        )

        with pytest.raises(
            TopologyUnknown, match=r"amd-25-33 on pCPUs 0-3; amd-26-36 on pCPUs 4-7"
        ):
            classify(facts)


class TestArm:
    def test_two_designs_of_one_capacity_are_two_types(self):
        """Four designs are four types even if two share a capacity; ties are sorted by name."""
        topology = classify(machines.arm_four())

        assert types(topology) == [
            ("cortex-a510", [0, 1, 2]),
            ("cortex-a710", [5, 6]),
            ("cortex-a715", [3, 4]),
            ("cortex-x3", [7]),
        ]
        assert coefficients(topology) == {
            "cortex-a510": 1.0,
            "cortex-a710": 3.054,
            "cortex-a715": 3.054,
            "cortex-x3": 3.657,
        }
        assert topology.core_type("cortex-x3").coefficient_source == "cpu_capacity"
        assert topology.source == "CPU implementer and part, cpu_capacity"

    def test_a_slower_design_may_be_clocked_higher(self):
        """cpufreq does not compare designs."""
        topology = classify(machines.arm_big_little())

        assert types(topology) == [("cortex-a53", [2, 3, 4, 5]), ("cortex-a73", [0, 1])]

    def test_a_prime_core_is_a_type(self):
        """Two speed classes of one design have the speed in their names."""
        topology = classify(machines.arm_prime())

        assert [n for n, _ in types(topology)] == [
            "kryo-4xx-silver",
            "kryo-4xx-gold-slow",
            "kryo-4xx-gold-fast",
        ]

    def test_capacities_that_hardly_differ_are_one_type(self):
        """A chip whose clusters differ by 2 % has two types, as fast as their slowest CPUs."""
        facts = machine(
            cores(5, 0, capacity=718, implementer=0x41, part=0xD87),
            cores(5, 5, capacity=997, implementer=0x41, part=0xD85),
            cores(5, 10, capacity=731, implementer=0x41, part=0xD87),
            cores(5, 15, capacity=1024, implementer=0x41, part=0xD85),
        )

        topology = classify(facts)

        assert coefficients(topology) == {"cortex-a725": 1.0, "cortex-x925": 1.389}

    def test_the_line_up_orders_designs_without_capacity(self):
        """The model tells little, big and prime cores apart, but not how much faster they are."""
        facts = without(machines.arm_prime(), "capacity", "max_freq_khz")

        topology = classify(facts)

        assert types(topology) == [
            ("kryo-4xx-silver", [0, 1, 2, 3]),
            ("kryo-4xx-gold", [4, 5, 6, 7]),
        ]
        assert coefficients(topology)["kryo-4xx-gold"] is None

    def test_designs_of_one_rank_are_refused_without_capacity(self):
        """Nothing says which of Cortex-A710 and Cortex-A715 is faster."""
        with pytest.raises(TopologyUnknown, match=r"cortex-a715 on pCPUs 3-4; cortex-a710"):
            classify(without(machines.arm_four(), "capacity"))

    def test_capacities_alone_divide(self):
        """Without any model the kernel's capacities give slow, medium and fast."""
        facts = without(machines.arm_four(), "implementer", "part")

        topology = classify(facts)

        assert types(topology) == [("slow", [0, 1, 2]), ("medium", [3, 4, 5, 6]), ("fast", [7])]

    def test_more_speeds_than_words_are_numbered(self):
        """Four speed classes without a design are speed-1 to speed-4."""
        facts = machine(*(cores(1, i, capacity=128 << i) for i in range(4)))

        assert [n for n, _ in types(classify(facts))] == [f"speed-{i}" for i in (1, 2, 3, 4)]

    def test_capacity_and_cppc_must_not_contradict(self):
        """Two contradicting declared speeds are refused."""
        facts = machine(
            cores(2, 0, capacity=500, highest_perf=90, implementer=0x41, part=0xD05),
            cores(2, 2, capacity=1024, highest_perf=60, implementer=0x41, part=0xD0B),
        )

        with pytest.raises(TopologyUnknown, match="ACPI CPPC highest_perf says that cortex-a55"):
            classify(facts)

    def test_an_unknown_part_has_a_name(self):
        """Implementer and part in hexadecimal."""
        facts = machine(cores(2, implementer=0x41, part=0xFFF))

        assert types(classify(facts)) == [("arm-41-fff", [0, 1])]

    def test_cpus_that_do_not_report_their_model(self):
        """Such a CPU is assumed to be like the others, unless those are of several models."""
        facts = machine(cores(3, implementer=0x41, part=0xD0C), cores(1, 3))
        assert types(topology := classify(facts)) == [("neoverse-n1", [0, 1, 2, 3])]
        assert "pCPUs 3 do not report their CPU model" in topology.warnings[0]

        facts = machine(machines.arm_four().cpus, cores(1, 8, capacity=1024))
        with pytest.raises(TopologyUnknown, match="pCPUs 8 do not report"):
            classify(facts)


class TestAnyMachine:
    def test_a_server_is_one_type(self):
        """128 equal threads: coefficient 1 and no warning."""
        topology = classify(machines.server())

        only = topology.core_types[0]
        assert types(topology) == [("core", list(range(128)))]
        assert (only.coefficient, only.coefficient_source) == (1.0, "only core type")
        assert only.threads_per_core == 2
        assert topology.warnings == ()
        assert topology.pcpus[65].siblings == (1, 65)
        assert (topology.pcpus[40].numa_node, topology.pcpus[40].llc) == (1, 32)

    def test_a_machine_without_facts_is_one_type(self):
        """The CPU directories of a virtual machine may be empty."""
        topology = classify(machines.bare_vm())

        assert types(topology) == [("core", [0, 1, 2, 3])]
        assert topology.source == "nothing tells the CPUs apart"
        assert topology.pcpus[1].siblings == (1,)

    def test_offline_cpus_do_not_count(self):
        """Even CPU 0 may be offline; siblings and threads per core include online CPUs only."""
        topology = classify(machines.server(offline=[0, *range(65, 128)]))

        assert topology.offline == (0, *range(65, 128))
        assert topology.pcpus[0].id == 1
        assert topology.pcpus[0].siblings == (1,)
        assert topology.core_types[0].threads_per_core == 1

    def test_siblings_follow_from_package_and_core(self):
        """If the kernel lists no siblings; core ids repeat in every package."""
        cpus = [fact(i, package=i % 2, core_id=i // 4) for i in range(8)]

        topology = classify(MachineFacts(tuple(cpus)))

        assert topology.pcpus[5].siblings == (5, 7)

    def test_isolated_cpus_are_marked(self):
        """The kernel's isolated CPUs are marked in the topology."""
        topology = classify(machines.server(isolated=[2, 3]))

        assert [p.id for p in topology.pcpus if p.isolated] == [2, 3]

    def test_no_cpu_is_refused(self):
        """A machine without online CPUs has no topology."""
        with pytest.raises(TopologyUnknown, match="no online CPU"):
            classify(machines.server(offline=range(128)))

    def test_riscv_designs_have_names(self):
        """RISC-V designs are identified by name and ordered by capacity."""
        facts = machine(
            cores(4, 0, uarch="spacemit,x60", capacity=500),
            cores(4, 4, uarch="spacemit,x100", capacity=1024),
        )

        assert [n for n, _ in types(classify(facts))] == ["spacemit-x60", "spacemit-x100"]

    def test_every_built_in_name_is_a_valid_trait(self):
        """Names are unique and acceptable to Placement."""
        names = [name for name, _ in ARM_DESIGNS.values()]

        assert len(set(names)) == len(names)
        assert all(NAME.fullmatch(n) for n in names)
        assert 0xBE not in INTEL_HYBRID_MODELS  # E-cores only


class TestReference:
    def test_another_type_may_be_the_reference(self):
        """Coefficients are relative to the reference core, and below 1 for slower types."""
        topology = classify(machines.intel_hybrid(), reference="p-core")

        assert coefficients(topology) == {"e-core": 0.609, "p-core": 1.0}

    def test_nothing_is_declared_relative_to_a_reference_elsewhere(self):
        """Only a calibration compares this machine with another one."""
        topology = classify(machines.server(), reference="old-xeon")

        assert topology.reference == "old-xeon"
        assert coefficients(topology) == {"core": None}


class TestConfigured:
    def test_the_configuration_overrides_detection(self):
        """Even PMU lists; types are slowest first regardless of the order of lines."""
        topology = classify(machines.intel_hybrid(pmus=True), lines("big 0-11 1.85", "small 12-19"))

        assert types(topology) == [("small", list(range(12, 20))), ("big", list(range(12)))]
        assert coefficients(topology) == {"small": 1.0, "big": 1.85}
        assert topology.core_type("big").coefficient_source.startswith("configuration")
        assert topology.source.startswith("configuration")
        assert topology.warnings == ()

    def test_a_missing_coefficient_is_detected(self):
        """Types without a configured coefficient use the declared one."""
        topology = classify(machines.intel_hybrid(), lines("big 0-11", "small 12-19"))

        assert coefficients(topology) == {"small": 1.0, "big": 1.641}

    def test_types_without_an_order_stay_as_written(self):
        """Missing facts never invalidate the configuration."""
        topology = classify(machines.bare_vm(), lines("one 0-1", "two 2-3"))

        assert types(topology) == [("one", [0, 1]), ("two", [2, 3])]
        assert coefficients(topology) == {"one": 1.0, "two": None}

    def test_offline_cpus_may_be_named(self):
        """A configuration stays valid during CPU hotplug; a type without online CPUs is omitted."""
        facts = machines.server(offline=range(64, 128))

        topology = classify(facts, lines("fast 0-63 2", "slow 64-127"))

        assert types(topology) == [("fast", list(range(64)))]
        assert coefficients(topology) == {"fast": 2.0}
        assert topology.reference == "slow"

    def test_the_type_of_coefficient_one_is_the_reference(self):
        """Even if it is not the slowest."""
        topology = classify(machines.bare_vm(), lines("a 0-1 0.5", "b 2-3 1.0"))

        assert topology.reference == "b"
        assert coefficients(topology) == {"a": 0.5, "b": 1.0}

    def test_the_named_reference_needs_no_coefficient(self):
        """It is 1 by definition, and counts for the order of types."""
        topology = classify(machines.bare_vm(), lines("a 0-1", "b 2-3 0.5"), "a")

        assert types(topology) == [("b", [2, 3]), ("a", [0, 1])]
        assert coefficients(topology) == {"b": 0.5, "a": 1.0}

    def test_a_reference_elsewhere_needs_no_coefficient_of_one(self):
        """In a cloud of several hardware generations every type may be faster than it."""
        topology = classify(machines.bare_vm(), lines("a 0-1 2", "b 2-3 3"), "old-xeon")

        assert coefficients(topology) == {"a": 2.0, "b": 3.0}

    @pytest.mark.parametrize(
        ("texts", "match"),
        [
            (["fast"], "'fast' must be 'NAME CPUS"),
            (["fast 0-3 1.0 x"], "must be 'NAME CPUS"),
            (["Fast 0-3"], "'Fast' must consist of lower-case"),
            (["fast 0-x"], "'x' is not a CPU id"),
            (["fast 3-0"], "'3-0' ends before it starts"),
            (["fast ,"], "'' is not a CPU id"),
            (["fast 0-3 quick"], "coefficient 'quick'"),
            (["fast 0-3 nan"], "coefficient 'nan'"),
            (["fast 0-3 -1"], "coefficient '-1'"),
            (["fast 0-3", "fast 0-3"], "fast is given twice"),
            (["fast 0-9"], "names pCPUs 4-9, which this machine does not have; it has 0-3"),
            (["fast 0-2", "slow 2-3"], "names pCPU 2 twice, for fast and slow"),
            (["fast 0-1"], "leaves out online pCPUs 2-3"),
            (["fast 0-1 2", "slow 2-3 1.5"], "no type the coefficient 1"),
        ],
    )
    def test_the_error_names_the_value(self, texts, match):
        """One sentence with the offending value."""
        with pytest.raises(ConfigInvalid, match=match):
            classify(machines.bare_vm(), lines(*texts))

    def test_the_reference_core_has_coefficient_one(self):
        """Another coefficient contradicts the definition."""
        with pytest.raises(ConfigInvalid, match="fast has coefficient 2, but it is the reference"):
            classify(machines.bare_vm(), lines("fast 0-1 2", "slow 2-3"), "fast")


class TestCalibrated:
    def test_measured_coefficients_replace_declared_ones(self):
        """The warning about declared coefficients disappears."""
        topology = classify(machines.intel_hybrid())

        topology = with_coefficients(
            topology, {"e-core": (1.0, 2e9), "p-core": (1.9, 3.8e9)}, "calibration"
        )

        assert coefficients(topology) == {"e-core": 1.0, "p-core": 1.9}
        assert topology.core_type("p-core").coefficient_source == "calibration"
        assert topology.core_type("p-core").nominal_ips == 3.8e9
        assert topology.warnings == ()

    def test_coefficients_that_were_not_measured_stay(self):
        """As does the warning about them."""
        topology = with_coefficients(
            classify(machines.intel_hybrid()), {"e-core": (None, 2e9)}, "calibration"
        )

        assert coefficients(topology) == {"e-core": 1.0, "p-core": 1.641}
        assert topology.core_type("e-core").coefficient_source == "reference core"
        assert len(topology.warnings) == 1

    def test_one_type_may_be_left_unknown(self):
        """A calibration of one type does not change the other."""
        topology = with_coefficients(
            classify(machines.zen_dense()), {"slow": (1.0, 3e9)}, "calibration"
        )

        assert coefficients(topology) == {"slow": 1.0, "fast": None}

    def test_the_configuration_overrides_a_calibration(self):
        """The configured coefficient stays, nominal Ips are added."""
        topology = classify(machines.intel_hybrid(), lines("big 0-11 1.85", "small 12-19"))

        topology = with_coefficients(topology, {"big": (1.7, 4e9)}, "calibration")

        assert topology.core_type("big").coefficient == 1.85
        assert topology.core_type("big").nominal_ips == 4e9

    def test_the_order_follows_the_measurement(self):
        """A calibration may reverse the order of two types."""
        topology = with_coefficients(
            classify(machines.arm_four()),
            {"cortex-a710": (3.2, None), "cortex-a715": (3.0, None)},
            "calibration",
        )

        assert [n for n, _ in types(topology)][1:3] == ["cortex-a715", "cortex-a710"]

    @pytest.mark.parametrize(
        ("measured", "match"),
        [
            ({"p-core": (float("inf"), None)}, "'p-core' says inf"),
            ({"q-core": (1.0, None)}, "'q-core', but this host has e-core, p-core"),
            ({"p-core": (0.0, None)}, "'p-core' says 0.0"),
            ({"p-core": (1.5, float("nan"))}, "'p-core' says nan"),
        ],
    )
    def test_nonsense_is_refused(self, measured, match):
        """A calibration of another machine or with impossible values."""
        with pytest.raises(CalibrationInvalid, match=match):
            with_coefficients(classify(machines.intel_hybrid()), measured, "calibration")


def test_the_nominal_clock_is_the_base_frequency():
    """The lowest one of the type's CPUs, if all report one."""
    clocks = {t.name: t.clock_hz for t in classify(machines.intel_hybrid()).core_types}

    assert sorted(clocks.values()) == [1.4e9, 1.9e9]
