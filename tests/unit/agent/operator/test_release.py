# SPDX-License-Identifier: Apache-2.0
"""Releasing instances: their flavors' state is restored, and the agent does not change it again."""

import sys

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent import wiring
from amp_nova.agent.operator.release import WHY, release
from amp_nova.agent.service import Service
from amp_nova.guard import locks
from tests.support.fakehost import resource
from tests.unit.agent.setups import HALF, NAME


def in_force(setup):
    """All that amp-nova could change: affinities, limits and the state folder's files."""
    names = [x.domain.name for x in setup.node.libvirt.known.values()]
    return (
        {tid: set(pcpus) for tid, pcpus in setup.node.kernel.affinity.items()},
        {(n, i): setup.node.host.limit(n, i) for n in names for i in range(2)},
        {p.name for p in setup.state.rglob("*")} - {locks.CYCLE},
    )


@pytest.mark.parametrize(("policy", "names"), [("none", [NAME]), ("acfs", [NAME, "other"])])
def test_release_of_all_restores_booked_instances_and_pauses_them(setup, policy, names):
    """No setting of amp-nova is left, the agent makes no change, others are not paused.

    Best effort that a policy placed is restored, and the CPU weights of all best effort.
    """
    setup.node.start(specs=HALF)
    setup.node.start("other", pid=4100)
    conf = setup.conf(policy=policy)
    running = Service(conf)
    running.once()
    assert setup.node.host.weight("other").read_text() == "10\n"

    done = release(conf, None)
    running.sensor.reread()
    again = running.once()

    assert (done.names, done.left) == (tuple(names), ())
    of_vcpus = [line.partition(" vCPU")[0] for line in done.changes if " vCPU" in line]
    assert of_vcpus == sorted(names * 2)
    assert "other: weight 100" in done.changes
    assert [setup.node.host.weight(n).read_text() for n in (NAME, "other")] == ["100\n"] * 2
    vcpus = [v for d in again.domains for v in d.vcpus]
    assert len(vcpus) == 4
    assert not [v for v in vcpus if v.reading.pcpus < v.reading.allowed]
    assert setup.node.host.limit().split()[0] == "max"
    assert not again.changes
    assert setup.paused() == dict.fromkeys((resource(n) for n in names), WHY)


def test_dry_run_lists_the_same_and_changes_nothing(setup, monkeypatch):
    """Neither limits, affinities and I/O threads nor CPU weights; and nothing is paused."""
    setup.node.start()
    io_thread = setup.io_thread(monkeypatch)
    setup.node.start("booked", pid=4100, specs=HALF)
    weight = setup.node.host.weight(NAME)
    conf = setup.conf(io_work="slow")
    Service(conf).once()
    setup.node.kernel.affinity[io_thread] = {0, 1}
    by_hand = release(conf, None, dry_run=True)  # without the marker it was not the agent
    assert f"{NAME}: I/O threads" not in by_hand.changes
    wiring.io_marker(conf).touch()
    before = in_force(setup)

    dry = release(conf, None, dry_run=True)

    assert in_force(setup) == before
    assert weight.read_text() == "10\n"
    assert setup.paused() == {}
    assert release(conf, None) == dry
    assert in_force(setup) != before
    assert (weight.read_text(), len(setup.paused())) == ("100\n", 2)
    assert f"{NAME}: I/O threads" in dry.changes
    assert setup.node.kernel.affinity[io_thread] == {0, 1, 2, 3}
    assert f"{NAME}: weight 100" in dry.changes


def test_a_damaged_record_does_not_keep_others_from_being_released(setup, monkeypatch):
    """It is a leftover, and stays as it is; without libvirt nothing else tells of its instance."""
    setup.node.start(specs=HALF)
    setup.node.start("other", pid=4100, specs=HALF)
    Service(setup.conf()).once()
    path = setup.state / "records" / f"{resource(NAME)}.json"
    path.write_text("{")
    limited = setup.node.host.limit()
    monkeypatch.setitem(sys.modules, "amp_nova.agent.wiring", None)
    monkeypatch.delattr("amp_nova.agent.wiring", raising=False)

    done = release(setup.conf(), None)

    assert done.names == ("other",)
    assert setup.node.host.limit("other").split()[0] == "max"
    assert setup.node.host.limit() == limited
    assert len(done.left) == 1
    assert done.left[0].startswith(f"{resource(NAME)}: its record cannot be used: ")
    assert path.read_text() == "{"


def test_an_instance_that_cannot_be_restored_does_not_keep_others(setup):
    """Its failure is a leftover, and its record stays for the next attempt."""
    setup.node.start(specs=HALF)
    setup.node.start("other", pid=4100, specs=HALF)
    Service(setup.conf()).once()
    (setup.node.host.group(NAME, "vcpu0") / "cpu.max").write_text("nonsense\n")

    done = release(setup.conf(), None)

    assert setup.node.host.limit("other").split()[0] == "max"
    assert [left.partition(":")[0] for left in done.left] == [f"{NAME} vCPU 0 cannot be read"]
    assert [p.stem for p in (setup.state / "records").iterdir()] == [resource(NAME)]


def test_a_limit_without_record_and_booking_is_released_as_the_definition_says(setup):
    """Left by an agent older than the records, whose booking line was removed since."""
    setup.node.start()
    group = setup.node.host.group(NAME, "vcpu0")
    (group / "cpu.max").write_text("10000 20000\n")

    done = release(setup.conf(), None)

    assert done.names == (NAME,)
    assert done.changes == (f"{NAME} vCPU 0: no quota",)
    assert setup.node.host.limit().split()[0] == "max"
