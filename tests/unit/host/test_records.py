# SPDX-License-Identifier: Apache-2.0
"""What the agent records before it changes anything, on a fake node."""

import errno
import os

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.guard import record
from amp_nova.guard.record import Tuning
from amp_nova.host import records
from amp_nova.host.records import Records
from amp_nova.host.writer import WriteConditions, Writer
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.plugins import load_policy
from tests.support.fakehost import Node, put, resource

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}
EVERYWHERE = frozenset(range(4))


class Agent:
    """An agent on a fake node that has just started."""

    def __init__(self, node, state, policy="none"):
        node.sensor.reread()
        self.node, self.state = node, state
        self.records = Records(state, node.sensor)
        writer = Writer(node.sensor, WriteConditions(lambda: node.paused, records=self.records))
        self.loop = Loop(node.sensor, writer, policy=load_policy(policy))

    def cycled(self):
        """The agent after one cycle."""
        self.loop.cycle()
        return self

    def recorded(self, name=NAME):
        return record.load(self.state / record.FOLDER, resource(name))


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A fake node with one booked instance."""
    found = Node(tmp_path / "host", monkeypatch)
    found.kernel.pcpus = EVERYWHERE
    found.start(specs=HALF)
    return found


def refuse(*_, **__):
    raise OSError(errno.EROFS, "Read-only file system")


@pytest.fixture
def start(node, tmp_path):
    """Starts an agent, the next one each time."""
    return lambda: Agent(node, tmp_path / "state")


def test_what_was_found_is_recorded_before_the_first_write(node, start, monkeypatch):
    """Quota, period, affinity and CPU weight, of both vCPUs, with what tells them from others."""
    node.host.set_limit(30000, 50000)
    seen = []
    agent, write = start(), node.kernel.write

    def spy(*arguments):
        seen.append(agent.recorded())
        write(*arguments)

    monkeypatch.setattr("amp_nova.kernel.cgroups._write", spy)
    agent.loop.cycle()

    first = seen[0]
    assert first.vcpus[0].original == Tuning(Bandwidth(30000, 50000), EVERYWHERE)
    assert first.vcpus[1].original == Tuning(None, EVERYWHERE)
    assert first.vcpus[0].inode == os.stat(node.host.group(NAME, "vcpu0")).st_ino
    assert (first.started, first.vcpus[0].started) == ("77", "77")
    assert [limit.cores for _, limit in first.vcpus[0].safe.limits] == [0.5, 0.25]
    assert (first.weight, first.safe_weight) == (100, 1000)


def test_an_idle_cycle_writes_no_record(node, start):
    """The file stays the very same one."""
    agent = start().cycled()
    path = agent.records.folder / f"{R}.json"
    before = path.stat().st_ino, path.stat().st_mtime_ns

    for _ in range(3):
        agent.loop.cycle()

    assert (path.stat().st_ino, path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), ValueError("odd"), IndexError("odd")]
)
def test_what_cannot_be_recorded_is_not_changed(node, start, monkeypatch, fault):
    """Whatever the reason; others are not affected, and the next cycle tries again."""
    node.start("other", pid=4100, specs=HALF)
    agent, make = start(), records._domain

    def fails(domain, *arguments):
        if domain.resource == R:
            raise fault
        return make(domain, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(records, "_domain", fails)
        failures = agent.loop.cycle().outcome.failures

    assert {key[0]: f.reason for key, f in failures.items()} == {R: "unrecorded"}
    assert (getattr(fault, "strerror", None) or str(fault)) in failures[R, 0].message
    assert node.host.limit(NAME).split()[0] == "max"
    assert node.host.limit("other").split()[0] != "max"
    assert agent.loop.cycle().outcome.failures == {}
    assert agent.recorded() is not None


@pytest.mark.parametrize("removable", [True, False])
def test_the_record_of_an_instance_that_ended_is_removed(node, start, monkeypatch, removable):
    """With the next one that is written. If it stays, nobody uses it: its process is gone."""
    agent = start().cycled()
    node.host.stop()
    node.libvirt.known.clear()
    node.start("other", pid=4100, specs=HALF)

    if not removable:
        monkeypatch.setattr(record, "forget", refuse)
    assert not agent.loop.cycle().outcome.failures

    names = {name for name, _ in record.load_all(agent.records.folder)}
    assert names == {resource("other")} | (set() if removable else {R})


def test_limits_of_an_agent_without_records_are_not_taken_for_the_original(node, start, tmp_path):
    """An upgrade: what is as the agent would have it was an agent's work."""
    start().cycled()
    (tmp_path / "state" / record.FOLDER / f"{R}.json").unlink()

    agent = start().cycled()

    assert agent.recorded().vcpus[0].original == Tuning(None, EVERYWHERE)


def test_an_instance_whose_booking_has_gone_gets_back_what_was_found(node, start):
    """Its record stays, and its safe state is the one before the agent."""
    start().cycled()
    node.libvirt.define(NAME, specs={})
    agent = start().cycled()

    assert agent.recorded().vcpus[0].safe.limits == ()
    assert agent.recorded().vcpus[0].original.bandwidth is None


def test_the_pcpus_found_follow_the_definition(node, start):
    """Nova has pinned the vCPU elsewhere since: that is what a release restores."""
    agent = start().cycled()
    node.libvirt.define(NAME, specs=HALF, cpuset="2-3")

    agent.loop.cycle()

    assert agent.recorded().vcpus[0].original.pcpus == {2, 3}


@pytest.mark.parametrize("alive", [True, False])
def test_a_record_that_cannot_be_used_is_kept_beside_the_new_one(node, start, caplog, alive):
    """It may say what the first agent found; the others are used."""
    node.start("other", pid=4100, specs=HALF)
    first = start().cycled()
    path, other = first.records.folder / f"{R}.json", first.recorded("other")
    newer = path.read_text().replace('"version": 2, "resource"', '"version": 9, "resource"')
    path.write_text(newer)
    if not alive:
        node.host.stop()
        node.libvirt.known.pop(R)

    second = start()
    assert not second.loop.cycle().outcome.failures

    kept = path if not alive else path.with_name(f"{R}.1.aside")
    assert kept.read_text() == newer
    assert f"the record of {R} cannot be used: unsupported record version 9" in caplog.text
    assert (f"is kept as {kept}" in caplog.text) == alive
    assert second.recorded("other") == other
    assert not alive or second.recorded().vcpus[0].original == Tuning(None, EVERYWHERE)


def test_a_record_that_cannot_be_set_aside_is_not_overwritten(node, start, monkeypatch):
    """So nothing of its instance is changed, and the others are enforced."""
    node.start("other", pid=4100, specs=HALF)
    first = start().cycled()
    path = first.records.folder / f"{R}.json"
    path.write_text("{")
    node.host.set_limit("max", 100000)
    node.host.set_limit("max", 100000, "other")
    monkeypatch.setattr(os, "link", refuse)
    failures = start().loop.cycle().outcome.failures

    assert {key[0]: f.reason for key, f in failures.items()} == {R: "unrecorded"}
    assert path.read_text() == "{"
    assert node.host.limit(NAME).split()[0] == "max"
    assert node.host.limit("other").split()[0] != "max"


def test_a_process_that_outlives_its_domain_leaves_no_record(node, start):
    """QEMU ends a moment after libvirt has forgotten it, and nothing else happens on the host."""
    agent = start().cycled()
    node.libvirt.known.clear()
    agent.loop.cycle()
    node.host.stop()

    agent.loop.cycle()

    assert list(record.load_all(agent.records.folder)) == []


@pytest.mark.parametrize("name", [NAME, "other"])
def test_another_process_is_recorded_anew(node, start, name):
    """The instance was stopped and started: what was found of the old process says nothing."""
    node.start("other", pid=4100)
    agent = start().cycled()
    before = agent.recorded(name)
    node.host.stop(name, pid=4000 if name == NAME else 4100)
    node.host.start(name, pid=4200, began=99)
    put(node.host.weight(name), 300)
    node.host.set_limit(30000, 50000, name)
    node.sensor.reread()

    agent.loop.cycle()

    found = agent.recorded(name)
    assert (before.weight, before.safe_weight) == (100, 1000 if name == NAME else 10)
    assert found.started == "99"
    assert [v.original.bandwidth for v in found.vcpus.values()][:1] == (
        [Bandwidth(30000, 50000)] if name == NAME else []
    )
    assert (found.weight, found.safe_weight) == (300, before.safe_weight)


def test_shares_are_recorded_as_they_were_found(tmp_path, monkeypatch):
    """An operator's: in cgroup version 1, 1000 shares are no whole CPU weight."""
    node = Node(tmp_path / "host", monkeypatch, 1)
    node.start("other", pid=4100)
    put(node.host.weight("other"), 1000)
    agent = Agent(node, tmp_path / "state", "acfs")

    agent.loop.cycle()

    assert agent.recorded("other").weight == 1000


def test_a_weight_of_an_agent_whose_record_is_lost_is_not_taken_for_the_original(node, start):
    """Originally the instance had the default."""
    node.start("other", pid=4100)
    put(node.host.weight("other"), 1000)
    agent = start().cycled()

    assert (agent.recorded("other").weight, node.see("other").cpu_weight) == (100, 10)
