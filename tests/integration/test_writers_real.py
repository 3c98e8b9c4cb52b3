# SPDX-License-Identifier: Apache-2.0
"""The writer's libvirt back end on real guests: what differs from writing cgroups."""

import pytest

from tests.support.lab import FAST, SLOW, Agent, affinity, quota
from tests.support.tables import cells

HALF = {"amp:pref_core": "0.5"}


@pytest.fixture
def writer():
    """Every agent here writes through libvirt."""
    return "libvirt"


def test_limits_and_pins_are_libvirts_own(guests, agent):
    """As ``virsh schedinfo`` and ``virsh vcpupin`` show them, in the live definition alone."""
    guest = guests.guest("seen", HALF)

    agent.start()

    found = guest.domain.schedulerParameters()
    assert (found["vcpu_quota"], found["vcpu_period"]) == (10000, 20000)
    assert found["cpu_shares"] == 5120
    assert guest.domain.vcpuPinInfo()[0] == (False, True)
    assert quota(guest) == pytest.approx(0.5, rel=0.002)
    status = agent.cli("status")
    assert status.returncode == 0
    (row,) = (r for r in cells(status.stdout) if r[0] == guest.spec.name)
    assert row[1:3] == ["0", "0.5"]
    assert "slow" in row


def test_an_agent_that_lost_its_state_goes_by_the_mark(guests, lab, agent, tmp_path):
    """What its predecessor set is not taken for the definition's own, and is released."""
    guest = guests.guest("marked", HALF, cpuset=f"{FAST},{SLOW}")
    agent.start()
    assert affinity(guest) == {SLOW}
    agent.stop()

    later = Agent(tmp_path / "later", more="writer = libvirt\n")
    try:
        later.start()
        later.next_cycle()
        assert quota(guest) == pytest.approx(0.5, rel=0.002)
        assert "sets a CPU quota" not in later.cli("explain", guest.spec.name).stdout
        assert later.metric("amp_writes_total") == 0
        released = later.cli("release", guest.spec.name)
    finally:
        later.stop()

    assert (released.returncode, released.stderr) == (0, "")
    assert (quota(guest), affinity(guest)) == (None, {FAST, SLOW})
    assert guest.domain.schedulerParameters()["cpu_shares"] == 1024
