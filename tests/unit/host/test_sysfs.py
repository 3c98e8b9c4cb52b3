# SPDX-License-Identifier: Apache-2.0
"""Facts read from the files of a machine."""

import pytest

from amp_nova.exceptions import ConfigInvalid, TopologyUnknown
from amp_nova.hardware.detect import classify
from amp_nova.host.sysfs import online_mask, read_facts
from tests.support import machines, trees
from tests.support.fakehost import put

CPUS = "sys/devices/system/cpu"
KINDS = {
    "hybrid": machines.intel_hybrid(pmus=True),
    "hybrid without PMU lists": machines.intel_hybrid(),
    "meteor lake": machines.meteor_lake(),
    "four Arm designs": machines.arm_four(),
    "prime core": machines.arm_prime(),
    "ranked AMD": machines.amd_ranked(),
    "dense AMD": machines.zen_dense(),
    "server": machines.server(isolated=[2, 3], offline=[0, 1, 70]),
    "hybrid with offline CPUs": machines.intel_hybrid(pmus=True, offline=[0, 12, 13]),
    "bare": machines.bare_vm(),
}


@pytest.mark.parametrize(
    ("kind", "mask"), [*((kind, True) for kind in KINDS), ("hybrid with offline CPUs", False)]
)
def test_every_fact_is_read(tmp_path, kind, mask):
    """With or without the kernel's list of online CPUs."""
    trees.write(tmp_path, KINDS[kind], mask)

    assert read_facts(tmp_path) == KINDS[kind]


def test_a_root_must_be_a_directory_with_cpus(tmp_path):
    """The message names it, or what is missing in it."""
    with pytest.raises(ConfigInvalid, match=r"nowhere' is not a directory"):
        read_facts(tmp_path / "nowhere")
    with pytest.raises(TopologyUnknown, match="has no sys/devices/system/cpu/cpu0"):
        read_facts(tmp_path)


@pytest.fixture
def hybrid(tmp_path):
    """The files of an Intel hybrid."""
    return trees.write(tmp_path, machines.intel_hybrid(pmus=True))


def expected(root):
    """Whether the core types are the same as without the damage."""
    topology = classify(read_facts(root))
    return [len(topology.pcpus_of(t.name)) for t in topology.core_types] == [8, 12]


@pytest.mark.parametrize("content", ["", "\n", "(null)\n", "<unknown>\n", "-1\n", "\0\0\0"])
def test_files_without_a_value_are_ignored(hybrid, content):
    """Without a warning."""
    here = hybrid / CPUS / "cpu3"
    for path in ("acpi_cppc/highest_perf", "topology/core_id", "cpufreq/cpuinfo_max_freq"):
        (here / path).write_text(content)

    facts = read_facts(hybrid)

    assert facts.cpus[3].speeds.highest_perf is None
    assert facts.cpus[3].core_id is None
    assert facts.warnings == ()
    assert expected(hybrid)


def test_core_ids_that_are_unknown_join_nothing(tmp_path):
    """As /proc/cpuinfo has them for each CPU of some virtual machines."""
    trees.write(tmp_path, machines.bare_vm(4))
    for cpu in range(4):
        for name in ("core_id", "physical_package_id", "core_cpus_list", "thread_siblings_list"):
            (tmp_path / CPUS / f"cpu{cpu}/topology/{name}").unlink(missing_ok=True)
    blocks = (f"processor : {cpu}\nphysical id : -1\ncore id : -1\n" for cpu in range(4))
    (tmp_path / "proc/cpuinfo").write_text("\n".join(blocks))

    topology = classify(read_facts(tmp_path))

    assert [pcpu.siblings for pcpu in topology.pcpus] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("state", ["enabled", "disabled"])
def test_a_bpf_scheduler_is_a_warning(tmp_path, state):
    """It decides who runs, and few of them know cgroups."""
    trees.write(tmp_path, machines.bare_vm(4))
    (tmp_path / "sys/kernel/sched_ext").mkdir(parents=True)
    (tmp_path / "sys/kernel/sched_ext/state").write_text(f"{state}\n")

    said = any("may ignore the limits" in w for w in read_facts(tmp_path).warnings)

    assert said == (state == "enabled")


def test_time_that_a_hypervisor_does_not_guarantee_is_a_warning(tmp_path):
    """On IBM Z, where a partition may have CPUs beyond its share."""
    trees.write(tmp_path, machines.bare_vm(4))
    for cpu, polarization in enumerate(("vertical:high", "vertical:medium", "vertical:low", "")):
        (tmp_path / CPUS / f"cpu{cpu}/polarization").write_text(polarization)

    assert read_facts(tmp_path).warnings == (
        "pCPUs 2 have vertical:low polarization: the hypervisor guarantees them no time",
        "pCPUs 1 have vertical:medium polarization: the hypervisor guarantees them part of a CPU",
    )


@pytest.mark.parametrize("content", ["fast", "6 4", "0x40", "1_000", "٣", "1e3", "9" * 40])
def test_a_garbage_number_is_a_warning(hybrid, content):
    """The warning names the file, relative to the root, and its content."""
    (hybrid / CPUS / "cpu3/acpi_cppc/highest_perf").write_text(content)

    facts = read_facts(hybrid)

    assert facts.cpus[3].speeds.highest_perf is None
    assert facts.warnings == (
        f"/{CPUS}/cpu3/acpi_cppc/highest_perf is ignored: {content[:20]!r} is not a number",
    )
    assert expected(hybrid)


@pytest.mark.parametrize("name", ["online", "cpu1/topology/thread_siblings_list", "isolated"])
@pytest.mark.parametrize("content", [b"0-", b"x", b"0-99999999", b"\xff\xfe\x00"])
def test_a_garbage_list_is_a_warning(hybrid, name, content):
    """Other sources replace the list, or it may be missing."""
    (hybrid / CPUS / name).write_bytes(content)

    facts = read_facts(hybrid)

    assert len(facts.warnings) == 1
    assert name in facts.warnings[0]
    assert expected(hybrid)


def test_the_number_of_warnings_is_limited(hybrid):
    """A file that is broken for every CPU must not hide other warnings."""
    for cpu in range(20):
        (hybrid / CPUS / f"cpu{cpu}/cpu_capacity").write_text("?")

    warnings = read_facts(hybrid).warnings

    assert len(warnings) == 11
    assert warnings[-1] == "10 more files are ignored for the same reason"


def test_damaged_files_are_ignored(hybrid):
    """A directory in place of a file, and a truncated cpuinfo: the other files suffice."""
    (hybrid / CPUS / "cpu3/cpu_capacity").mkdir()
    path = hybrid / "proc/cpuinfo"
    path.write_text(path.read_text()[:333])

    assert read_facts(hybrid).cpus[3].speeds.capacity is None
    assert expected(hybrid)


def test_frequencies_are_read_from_policies(tmp_path):
    """Recordings lack the link from a CPU to its policy."""
    trees.write(tmp_path, machines.bare_vm())
    for policy, related, khz in ((0, "0 1", 2_000_000), (2, "2 3 x", 3_000_000)):
        folder = tmp_path / CPUS / f"cpufreq/policy{policy}"
        put(folder / "related_cpus", related)
        put(folder / "cpuinfo_max_freq", khz)

    found = [c.speeds.max_freq_khz for c in read_facts(tmp_path).cpus]

    assert found == [2_000_000] * 2 + [3_000_000] * 2


def test_midr_identifies_arm_cores(tmp_path):
    """MIDR overrides /proc/cpuinfo, which may be missing or made up for compatibility."""
    trees.write(tmp_path, machines.arm_four())
    midr = tmp_path / CPUS / "cpu0/regs/identification/midr_el1"

    put(midr, "0x00000000411fd4e0")
    assert read_facts(tmp_path).cpus[0].model.part == 0xD4E

    midr.write_text("garbage")
    facts = read_facts(tmp_path)
    assert facts.cpus[0].model.part == 0xD46
    assert "midr_el1 is ignored" in facts.warnings[0]


def test_lines_outside_an_entry_apply_to_all_cpus(tmp_path):
    """Old Arm kernels print the implementer once, after the CPUs."""
    trees.write(tmp_path, machines.bare_vm(2))
    (tmp_path / "proc/cpuinfo").write_text(
        "Processor\t: ARMv7\nprocessor\t: 0\nBogoMIPS\t: 48\n\nprocessor\t: 1\n\n"
        "CPU implementer\t: 0x41\nCPU part\t: 0xc0f\nHardware\n"
    )

    assert [c.model.part for c in read_facts(tmp_path).cpus] == [0xC0F, 0xC0F]


def test_the_online_mask_follows_hotplug(tmp_path):
    """The agent polls it to follow CPU hotplug."""
    trees.write(tmp_path, machines.bare_vm())
    assert online_mask(tmp_path) == {0, 1, 2, 3}

    (tmp_path / CPUS / "online").write_text("0,2-3\n")
    assert online_mask(tmp_path) == {0, 2, 3}

    (tmp_path / CPUS / "online").unlink()
    (tmp_path / CPUS / "cpu3/online").write_text("0\n")
    assert online_mask(tmp_path) == {0, 1, 2}
