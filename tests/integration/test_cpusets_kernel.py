# SPDX-License-Identifier: Apache-2.0
"""A real cpuset around a stand-in, of which its definition says nothing (cgroup version 1)."""

import os
from pathlib import Path

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.host.machine import OnlineTopology
from amp_nova.host.sensor import HostPaths, LibvirtSensor
from amp_nova.host.writer import Writer
from tests.support.fakehost import FakeLibvirt, topology
from tests.support.lab import FAST, SLOW
from tests.support.stands import Stand, why_not

CPUSET = Path("/sys/fs/cgroup/cpuset")
pytestmark = pytest.mark.skipif(
    why_not() is not None or not (CPUSET / "cpuset.cpus").exists(),
    reason=why_not() or "needs the cpuset controller of cgroup version 1",
)


@pytest.fixture
def stand():
    """A stand-in that books, in a group for vCPUs within a domain's within a slice."""
    made = Stand("confined", {"amp:pref_core": "0.4"})
    slice_ = CPUSET / made.group.name
    levels = [slice_, slice_ / "domain", slice_ / "domain/vcpu0"]
    try:
        for level in levels:
            level.mkdir()
            for name in ("cpuset.mems", "cpuset.cpus"):
                (level / name).write_text((level.parent / name).read_text())
        (levels[-1] / "tasks").write_text(str(made.process.pid))
        made.levels = levels
        yield made
    finally:
        made.close()
        for level in reversed(levels):
            level.rmdir()


def test_a_slice_bounds_a_booking_as_long_as_it_is_narrow(stand, tmp_path):
    """It narrows and widens while the agent runs: every write succeeds, and offers follow."""
    (tmp_path / f"{stand.name}.pid").write_text(str(stand.process.pid))
    libvirt = FakeLibvirt()
    libvirt.define(stand.name, vcpus=1, specs=stand.specs)
    kinds = topology(slow=(SLOW, FAST), fast=())
    online = OnlineTopology(lambda: kinds, lambda: frozenset({SLOW, FAST}))
    sensor = LibvirtSensor(libvirt, online, HostPaths(tmp_path))
    loop = Loop(sensor, Writer(sensor))

    for cpus in (f"{FAST}", f"{SLOW},{FAST}", f"{SLOW}", f"{SLOW},{FAST}"):
        order = stand.levels if "," in cpus else reversed(stand.levels)
        for level in order:
            (level / "cpuset.cpus").write_text(cpus)
        left = {int(cpu) for cpu in cpus.split(",")}

        cycles = [loop.cycle() for _ in range(2)]

        assert [c.outcome.failures for c in cycles] == [{}, {}]
        assert cycles[1].observation.usable == left
        assert cycles[1].observation.domains[0].vcpus[0].allowed == left
        assert os.sched_getaffinity(stand.process.pid) == left
        assert stand.quota == pytest.approx(0.4)
