# SPDX-License-Identifier: Apache-2.0
"""The guard on a fake node: what it writes, what it never writes, and when it ends."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

import amp_nova
from amp_nova.agent.loop import Loop
from amp_nova.agent.operator.release import WHY
from amp_nova.guard import lease, record
from amp_nova.guard.__main__ import Watch
from amp_nova.guard.pauses import Pauses
from amp_nova.guard.restore import original, restore
from amp_nova.host.records import Records
from amp_nova.host.writer import WriteConditions, Writer
from amp_nova.kernel import cgroups, threads
from amp_nova.model.bandwidth import Bandwidth
from tests.support.fakehost import Node, put, resource

NAME, OTHER = "instance-00000001", "instance-00000002"
HALF = {"amp:pref_core": "0.5"}
SLOW, FAST = {0, 1}, {2, 3}
SET, DEFAULT = {NAME: 1000, OTHER: 10}, {NAME: 100, OTHER: 100}


class Guarded:
    """A fake node with a booked and a best-effort instance, after one cycle of the agent."""

    def __init__(self, tmp_path, monkeypatch, version):
        self.state = tmp_path / "state"
        self.root = tmp_path / "host"
        self.root.mkdir()
        self.node = Node(self.root, monkeypatch, version)
        self.node.kernel.pcpus = frozenset(range(4))
        self.node.start(NAME, specs=HALF)
        self.node.start(OTHER, pid=4100)
        self.cycle()
        self.lease = lease.Lease(self.state, 10.0)
        self.lease.take()
        self.watch = Watch(self.state, str(self.root / "proc"))

    def cycle(self):
        """One cycle of an agent that has just started."""
        node = self.node
        node.sensor.reread()
        records = Records(self.state, node.sensor)
        writer = Writer(node.sensor, WriteConditions(lambda: node.paused, records=records))
        return Loop(node.sensor, writer).cycle()

    def expire(self, at="1"):
        """The lease ended at this time."""
        (self.state / lease.LEASE).write_text(at)

    def guard(self):
        """The lease ends and the guard acts."""
        self.expire()
        return self.watch.poll()

    def weight(self, name=OTHER):
        """In the unit of ``cpu.weight``."""
        shares = int(self.node.host.weight(name).read_text())
        return shares if self.node.host.version == 2 else round(shares * 100 / 1024)

    def weights(self):
        return {name: self.weight(name) for name in (NAME, OTHER)}

    def reload(self):
        """What systemd does with a daemon-reload: every weight is the default."""
        for name in (NAME, OTHER):
            put(self.node.host.weight(name), {1: 1024, 2: 100}[self.node.host.version])

    def place(self, index=0, pid=4000):
        return self.node.kernel.affinity[self.node.host.tid(index, pid)]

    def move(self, pcpus, index=0, pid=4000):
        self.node.kernel.affinity[self.node.host.tid(index, pid)] = set(pcpus)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def host(request, tmp_path, monkeypatch):
    """A guarded node of either cgroup version."""
    return Guarded(tmp_path, monkeypatch, request.param)


def limit_ms(host, index=0):
    """The limit of a vCPU as a share of a core."""
    quota, period = host.node.host.limit(NAME, index).split()
    return None if quota in ("max", "-1") else int(quota) / int(period)


def test_when_it_expires_limits_and_weights_stay(host):
    """They are right without an agent: nothing to write, however long, and one expiry."""
    writes = host.node.kernel.writes

    for _ in range(3):
        assert host.guard() == (1.0, True)

    assert host.node.kernel.writes == writes
    assert host.place(pid=4100) == SLOW | FAST
    assert (host.place(), limit_ms(host)) == (SLOW, pytest.approx(0.5))
    assert host.weights() == SET
    assert lease.expirations(host.state) == 1


@pytest.mark.parametrize("after", ["reading the records", "reading the weight", "the weight"])
def test_an_agent_that_takes_a_lease_meanwhile_finds_it_as_it_was(host, monkeypatch, after):
    """The guard looks right before each write: from then on the agent alone writes."""

    def then_a_lease_is_taken(function):
        def called(*arguments):
            result = function(*arguments)
            host.lease.take()
            return result

        return called

    owner, name = {
        "reading the records": (host.watch, "_domains"),
        "reading the weight": (cgroups.DomainGroup, "shares"),
        "the weight": (cgroups, "_write"),
    }[after]
    host.move(FAST)
    host.reload()
    monkeypatch.setattr(owner, name, then_a_lease_is_taken(getattr(owner, name)))

    host.guard()

    assert host.weights() == {**DEFAULT, **({NAME: 1000} if after == "the weight" else {})}
    assert (host.place(), limit_ms(host)) == (FAST, pytest.approx(0.5))


@pytest.mark.parametrize("when", ["before the write", "after the write"])
def test_an_instance_that_is_released_meanwhile_gets_what_was_found(host, monkeypatch, when):
    """A command that keeps the lock for long does not keep the guard from its work."""
    domain, write = record.load(host.state / record.FOLDER, resource(NAME)), cgroups._write

    def release():
        Pauses(host.state).pause(resource(NAME), WHY)
        restore(domain, original)

    def state(thread, real=threads.Thread.pcpus):
        now = real(thread)
        if when == "before the write":
            monkeypatch.setattr(threads.Thread, "pcpus", real)
            release()
        return now

    def late(path, value, kept=None):
        if when == "after the write" and "cfs_period" not in path:
            monkeypatch.setattr(cgroups, "_write", write)
            release()
        write(path, value, kept)

    host.move(FAST)
    monkeypatch.setattr(threads.Thread, "pcpus", state)
    monkeypatch.setattr(cgroups, "_write", late)

    host.guard()

    assert limit_ms(host) is None
    assert host.place() == SLOW | FAST


def test_a_damaged_record_does_not_affect_the_other_domains(host, capsys):
    """It is reported, kept as it is, and its domain is left alone. Nor does a missing folder."""
    path = host.state / record.FOLDER / f"{resource(NAME)}.json"
    damaged = path.read_text()[:100]
    path.write_text(damaged)
    folder, away = path.parent, path.parent.with_name("away")
    folder.rename(away)
    folder.touch()
    host.move(FAST)
    host.reload()

    assert host.guard() == (1.0, True)
    assert "records cannot be read: Not a directory" in capsys.readouterr().err
    folder.unlink()
    away.rename(folder)
    for _ in range(2):
        assert host.watch.poll() == (1.0, True)

    assert host.weights()[OTHER] == 10
    assert (host.place(), limit_ms(host)) == (FAST, pytest.approx(0.5))
    assert path.read_text() == damaged
    assert capsys.readouterr().err.count(f"the record of {resource(NAME)}") == 1


def test_a_fault_with_one_domain_does_not_affect_the_others(host, capsys, monkeypatch):
    """Whatever it is; it is said once, and tried again."""

    def fails(domain, *arguments, **more):
        if domain.name == NAME:
            raise ZeroDivisionError
        return restore(domain, *arguments, **more)

    monkeypatch.setattr("amp_nova.guard.__main__.restore", fails)
    host.reload()
    host.guard()
    host.watch.poll()

    assert host.weights()[OTHER] == 10
    assert capsys.readouterr().err.count(f"{NAME} cannot be guarded: ZeroDivisionError()") == 1


@pytest.mark.parametrize(
    ("place", "limit"),
    [
        (SLOW, ("max", 100000)),
        (FAST, (10000, 20000)),
        ({2}, (5000, 20000)),
        (SLOW | FAST, (5000, 20000)),
        ({1, 2}, ("max", 100000)),
    ],
)
def test_a_half_finished_move_is_completed_or_undone(host, place, limit):
    """Whatever the agent had done when it died: one core type, and its limit."""
    host.node.host.set_limit(*limit)
    host.move(place)

    host.guard()

    assert host.place() <= SLOW or host.place() <= FAST
    assert limit_ms(host) == pytest.approx(0.5 if host.place() <= SLOW else 0.25)
    if place <= SLOW or place <= FAST:
        assert host.place() == place


def test_a_thread_id_that_another_thread_has_now_is_never_written(host):
    """Nor is its group: the record is of the thread that was there."""
    host.move(FAST, 1)
    host.node.host.reuse(1)

    host.guard()

    assert host.place(1) == FAST
    assert limit_ms(host, 1) == pytest.approx(0.5)  # as the agent left it


def test_a_group_that_another_group_has_replaced_is_never_written(host):
    """The same path is not enough."""
    group = host.node.host.group(NAME, "vcpu0")
    group.rename(group.with_name("gone"))
    host.node.host.group(NAME, "vcpu0")
    host.move(FAST)

    host.guard()

    assert limit_ms(host) is None


def test_what_is_paused_or_released_is_left_alone(host):
    """Whatever an operator has done with it since."""
    Pauses(host.state).pause(resource(NAME), WHY)
    host.reload()
    host.move({0, 2})

    host.guard()

    assert host.weights() == {NAME: 100, OTHER: 10}
    assert (host.place(), limit_ms(host)) == ({0, 2}, pytest.approx(0.5))


def test_it_ends_when_nothing_is_left_to_guard(host):
    """It removes no record: an agent may have written another one meanwhile."""
    host.node.host.stop(NAME)
    host.node.host.stop(OTHER, pid=4100)

    assert host.guard() == (1.0, False)
    assert len(list((host.state / record.FOLDER).iterdir())) == 2
    assert lease.expirations(host.state) == 0


def test_a_record_of_other_processes_than_this_machines_is_not_used(host):
    """As one that a test or another root left."""
    host.expire()
    writes = host.node.kernel.writes

    assert Watch(host.state).poll() == (1.0, False)
    assert host.node.kernel.writes == writes


@pytest.mark.parametrize("seen", [True, False], ids=["at a poll", "between two polls"])
def test_after_a_lease_that_was_renewed_the_next_expiration_is_another_one(host, seen):
    """An agent that was back, if for a moment only, has put everything as it wants it."""
    host.guard()
    if seen:
        host.lease.take()
        assert host.lease.taken_over()
        assert not host.lease.taken_over()
        host.watch.poll()
    host.cycle()
    host.reload()

    host.expire(at="2")
    host.watch.poll()

    assert host.weights() == SET
    assert lease.expirations(host.state) == 2


def test_a_failure_is_tried_again_and_said_once(host, capsys):
    """Once for each domain. Systemd may have reset their weights while the agent hung."""
    host.reload()
    host.node.kernel.refuse = dict.fromkeys(("cpu.weight", "cpu.shares"), 30)
    for _ in range(3):
        host.guard()
    host.node.kernel.refuse = {}
    host.watch.poll()

    assert host.weights() == SET
    assert capsys.readouterr().err.count("Read-only file system") == 2


def test_release_restores_what_was_found_before_the_first_agent(host):
    """However many agents came after it, and whatever the guard did; a dry run says it first."""
    host.cycle()
    host.guard()
    domains = [domain for _, domain in record.load_all(host.state / record.FOLDER)]
    writes = host.node.kernel.writes

    dry = [restore(d, original, dry_run=True) for d in domains]
    assert host.node.kernel.writes == writes

    assert [restore(d, original) for d in domains] == dry
    assert [d.left for d in dry] == [[], []]
    assert any(d.changes[0].startswith(f"{OTHER}: weight 10") for d in dry)
    assert limit_ms(host) is None
    assert [host.place(i, p) for i in (0, 1) for p in (4000, 4100)] == [SLOW | FAST] * 4
    assert host.weights() == DEFAULT


def test_release_restores_the_weight_that_was_found(host):
    """An operator's."""
    domain = record.load(host.state / record.FOLDER, resource(OTHER))
    operators = replace(domain, weight=domain.weight * 3)

    assert restore(operators, original).left == []

    assert host.weight() == 300


def test_release_restores_the_burst_that_was_found(host):
    """With its limit, and the line says so."""
    put(host.node.host.burst(), 0)
    domain = record.load(host.state / record.FOLDER, resource(NAME))
    found = record.Tuning(Bandwidth(30000, 50000), frozenset(SLOW), 3000)
    domain = replace(domain, vcpus={0: replace(domain.vcpus[0], original=found)})

    done = restore(domain, original)

    assert done.changes[-1] == f"{NAME} vCPU 0: quota 30000/50000 us, burst 3000 us"
    assert host.node.host.burst().read_text() == "3000\n"
    assert host.node.host.limit(NAME) == "30000 50000"
    assert restore(domain, original).changes == []


def test_a_weight_that_is_not_amp_novas_is_not_written(host):
    """The record of one with CPU shares of its own has no group; a weight of 0 is unknown."""
    host.reload()
    domain = record.load(host.state / record.FOLDER, resource(OTHER))
    for wanted in (original, lambda vcpu, now: now):
        restore(replace(domain, group="", weight=300, safe_weight=5), wanted)
        restore(replace(domain, weight=0, safe_weight=0), wanted)

    assert host.weights() == DEFAULT


def test_the_program_ends_at_once_with_nothing_to_guard(tmp_path):
    """Exit status 0; a folder that cannot be written is bad input. No site-packages are needed."""
    command = [sys.executable, "-sSP", "-m", "amp_nova.guard", "--state-path"]
    env = {"PYTHONPATH": str(Path(amp_nova.__file__).parents[1])}
    there = subprocess.run([*command, tmp_path], env=env, timeout=60, check=False)
    (tmp_path / "file").touch()
    bad = subprocess.run(
        [*command, tmp_path / "file/x"],
        env=env,
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (there.returncode, bad.returncode) == (0, 2)
    assert "cannot be written (Not a directory)" in bad.stderr


def test_it_waits_for_the_records_of_the_agent_that_started_it(tmp_path):
    """However long its first cycle takes; not for those of an agent that has ended."""
    command = [sys.executable, "-m", "amp_nova.guard", "--state-path", tmp_path, "--agent"]
    with subprocess.Popen([*command, str(os.getpid())]) as of_mine:
        with pytest.raises(subprocess.TimeoutExpired):
            of_mine.wait(1.5)
        of_mine.kill()

    assert subprocess.run([*command, "1"], timeout=60, check=False).returncode == 0
