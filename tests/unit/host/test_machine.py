# SPDX-License-Identifier: Apache-2.0
"""The topology of a machine with its configuration and calibration."""

import os
from dataclasses import replace

import pytest

from amp_nova import conf as options
from amp_nova.exceptions import CalibrationInvalid, ConfigInvalid
from amp_nova.hardware.detect import classify
from amp_nova.host.calibration.file import write
from amp_nova.host.machine import OnlineTopology, load_topology
from tests.support import calibrations, machines, trees
from tests.support.machines import changed, cores, machine


@pytest.fixture
def conf(tmp_path):
    """The configuration of an Intel hybrid that is not calibrated."""
    conf = options.load(files=[])
    root = trees.write(tmp_path / "hybrid", machines.intel_hybrid(pmus=True))
    conf.set_override("root", str(root), "topology")
    conf.set_override("calibration_file", str(tmp_path / "calibration.json"), "topology")
    return conf


@pytest.fixture
def calibrated(conf):
    """The same machine with a calibration that is relative to a core of another host."""
    pcpus = {"slow": tuple(range(12, 20)), "fast": tuple(range(12))}
    made = calibrations.build(conf.topology.root, "other", "host-a", pcpus)
    types = [replace(t, name=n) for t, n in zip(made.core_types, ("e-core", "p-core"), strict=True)]
    made = replace(made, reference="old-xeon", core_types=tuple(types))
    write(conf.topology.calibration_file, [made])
    return conf


def test_the_calibration_counts_and_a_reference_elsewhere_needs_it(calibrated, tmp_path):
    """It replaces declared coefficients, and the warning about them.

    Nothing else compares this host with a core that it does not have.
    """
    calibrated.set_override("reference", "old-xeon", "topology")
    found = load_topology(calibrated)
    assert found.reference == "old-xeon"
    assert [t.coefficient for t in found.core_types] == pytest.approx([2, 4])
    assert not [w for w in found.warnings if "declared by the firmware" in w]

    calibrated.set_override("calibration_file", str(tmp_path / "none"), "topology")
    with pytest.raises(
        ConfigInvalid, match=r"'old-xeon' is not a core type of this host .it has e-"
    ):
        load_topology(calibrated)


def test_the_reference_core_may_be_offline(conf, tmp_path):
    """Nova may take all E-cores offline; the agent continues, and warns of unknown values."""
    facts = machines.intel_hybrid(pmus=True, offline=range(12, 20))
    root = trees.write(tmp_path / "saving", facts)
    conf.set_override("root", str(root), "topology")
    conf.set_override("reference", "e-core", "topology")

    topology = load_topology(conf)

    assert topology.reference == "e-core"
    assert topology.core_type("p-core").coefficient is None
    assert any("coefficient of p-core" in w for w in topology.warnings)


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o602])
def test_a_calibration_that_others_can_change_is_refused(calibrated, mode):
    """It decides what guests receive."""
    os.chmod(calibrated.topology.calibration_file, mode)

    with pytest.raises(CalibrationInvalid, match=r"can be changed by others .*: run chmod go-w"):
        load_topology(calibrated)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_calibration_of_another_user_is_refused(calibrated):
    """Its owner could change it."""
    os.chown(calibrated.topology.calibration_file, 12345, 0)

    with pytest.raises(CalibrationInvalid, match="belongs to user 12345: run chown root"):
        load_topology(calibrated)


def test_a_cpu_that_comes_online_before_its_files_changes_no_other(caplog):
    """The core types stay, and it is one of them as soon as its files are there."""
    halves = (cores(2, 0, max_freq_khz=3_300_000), cores(2, 2, max_freq_khz=5_100_000))
    whole = machine(*halves)
    early = replace(whole, cpus=(*whole.cpus[:3], changed(whole.cpus[3], max_freq_khz=None)))
    now = {"facts": replace(whole, cpus=whole.cpus[:3]), "online": frozenset({0, 1, 2})}
    found = OnlineTopology(lambda: classify(now["facts"]), lambda: now["online"])
    types = found.topology.core_types

    now.update(facts=early, online=frozenset(range(4)))
    found.follow(retry=False)
    found.follow(retry=True)
    assert (found.topology.core_types, found.topology.type_of(3)) == (types, None)
    assert "says nothing of pCPUs 3" in caplog.text

    now.update(facts=whole)
    found.follow(retry=True)
    assert (found.topology.core_types, found.topology.type_of(3)) == (types, types[1])


def test_cpus_that_come_online_without_files_are_classified_when_these_are_there():
    """All slow ones at once: until then nothing tells them from the others, which is said."""
    fast, slow = (cores(2, 2 * i, max_freq_khz=f) for i, f in enumerate((5_100_000, 3_300_000)))
    early = machine(fast, [changed(c, max_freq_khz=None) for c in slow])
    now = {"facts": machine(fast), "online": frozenset({0, 1})}
    found = OnlineTopology(lambda: classify(now["facts"]), lambda: now["online"])

    now.update(facts=early, online=frozenset(range(4)))
    assert found.follow(retry=False)
    assert "says nothing of pCPUs 2-3" in found.topology.warnings[0]
    assert not found.follow(retry=True)

    now.update(facts=machine(fast, slow))
    assert found.follow(retry=True)
    assert [t.name for t in found.topology.core_types] == ["slow", "fast"]
    assert not found.follow(retry=True)
