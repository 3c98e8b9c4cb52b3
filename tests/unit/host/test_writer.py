# SPDX-License-Identifier: Apache-2.0
"""The writer on a fake host; libvirt is a fake that knows domains."""

import errno
import os
import threading
from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.guard.locks import locked
from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.host.writer import CgroupBackend
from amp_nova.model.allocation import Change, Changes, Failure, Outcome
from amp_nova.model.bandwidth import Bandwidth, Step
from tests.support.fakehost import Node, nova_xml, put, resource

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}
LIMIT = Bandwidth(5000, 20000)
LESS = Bandwidth(4000, 20000)
ON_3 = Step(pcpus=frozenset({3}))
WRITER = "amp_nova.host.writer"


def change(index=0, *steps, name=NAME):
    """A change of one vCPU: by default a limit."""
    return Change((resource(name), index), steps or (Step(bandwidth=LIMIT),))


def apply(node, *changes, **weights):
    """Apply changes of vCPUs, and set the CPU weights of instances, by name."""
    return node.writer.apply(Changes(changes, {resource(n): w for n, w in weights.items()}))


def test_changes_are_made(running):
    """Once: the same limit again would refill the group and forgive its debt."""
    assert apply(running, change(1, ON_3, Step(bandwidth=LIMIT))) == Outcome()

    assert running.host.limit(index=1) == "5000 20000"
    assert running.see().vcpus[1].pcpus == {3}
    written = list(running.kernel.written)
    assert apply(running, change(1)) == Outcome()
    assert running.kernel.written == written


def test_weight_is_set_before_the_limits(node):
    """Of the domain's group, in the same call: without it, a limit gives no precedence."""
    node.start("web")
    assert node.see("web").cpu_weight == 100

    assert apply(node, change(name="web"), web=1000) == Outcome()

    assert node.host.weight("web").read_text() == {1: "10240\n", 2: "1000\n"}[node.host.version]
    assert node.see("web").cpu_weight == 1000
    assert node.host.limit("web") == "5000 20000"
    assert node.kernel.written[0][0] == node.host.weight("web").name


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.EROFS, "read_only"), (errno.EPERM, "read_only"), (errno.EINVAL, "refused")],
)
def test_refusal_by_the_kernel_is_counted_and_reported(node, code, reason):
    """In the kernel's words, for the vCPU or the weight alone; what it permits is written."""
    node.start()
    node.start("web", pid=4100)
    node.see()
    node.kernel.refuse = {"cpu.max": code, "cpu.cfs_quota_us": code, "cpu.cfs_period_us": code}
    node.kernel.refuse[node.host.weight().name] = code

    outcome = apply(node, change(), change(1, ON_3), web=10)

    what = os.strerror(code)
    assert outcome == Outcome(
        {(R, 0): Failure(reason, f"vCPU 0 cannot be changed: {what}")},
        {resource("web"): Failure(reason, f"its CPU weight cannot be changed: {what}")},
    )
    assert node.see().vcpus[1].pcpus == {3}


def test_what_reads_back_otherwise_is_refused(running):
    """A kernel that accepts the write and does something else is noticed."""
    running.kernel.twist = {"cpu.max": "9000 20000\n", "cpu.cfs_quota_us": "9000\n"}
    running.kernel.twist |= {"cpu.weight": "70\n", "cpu.shares": "70\n"}

    outcome = apply(running, change(), **{NAME: 10})

    limit, weight = outcome.failures[R, 0], outcome.weight_failures[R]
    assert {limit.reason, weight.reason} == {"refused"}
    assert limit.message == (
        "vCPU 0: the kernel reports the limit 9000/20000 us after the limit 5000/20000 us was set"
    )
    assert weight.message.startswith("its CPU weight: the kernel reports the cpu.")


@pytest.mark.fault("domain ends within a cycle", "no failure; its neighbour is limited")
def test_what_is_gone_or_unknown_is_no_failure(node):
    """An instance may be shut down, or a vCPU unplugged, between observation and action."""
    node.start()
    node.start("web", pid=4100)
    node.see()
    node.host.stop("web", pid=4100)
    node.host.unplug(NAME, 0)

    outcome = apply(node, *map(change, (0, 1, 5)), change(name="web"), web=10, other=10)

    assert outcome == Outcome()
    assert node.host.limit(index=1) == "5000 20000"
    node.host.plug(NAME, 0)
    assert [v.index for v in node.see().vcpus] == [0, 1]


def test_limit_that_replaces_another_one_is_written_as_a_period_begins(running, monkeypatch):
    """The steps before it are made at once, like a first limit, and the steps after it follow."""
    waits = []

    def at_period_start(groups, act):
        waits.append(
            {key: (os.path.basename(group.path), list(steps)) for key, group in groups.items()}
        )
        steps.clear()
        for key in groups:
            act(key)

    steps = []
    monkeypatch.setattr(f"{WRITER}.at_period_start", at_period_start)
    monkeypatch.setattr(
        CgroupBackend, "take", lambda _self, _key, _thread, step: steps.append(step)
    )
    monkeypatch.setattr(f"{WRITER}._check", lambda _thread, _step: None)
    running.sensor.thread((R, 1)).group.set_bandwidth(LIMIT)
    first, less, on_2 = Step(bandwidth=LIMIT), Step(bandwidth=LESS), Step(frozenset({2}))

    assert apply(running, change(0, first), change(1, ON_3, less, on_2)) == Outcome()

    assert waits == [{(R, 1): ("vcpu1", [first, ON_3])}]
    assert steps == [less, on_2]


def test_narrower_affinity_than_written_is_a_failure(running):
    """The kernel silently cuts a mask to the cpuset."""
    running.kernel.pcpus = frozenset({2})

    failures = apply(running, change(0, Step(pcpus=frozenset({2, 3})))).failures

    assert failures[R, 0].message == (
        "vCPU 0: the kernel keeps it on pCPUs [2] instead of [2, 3]: "
        "its cpuset does not contain them all"
    )


def test_later_steps_of_a_failed_change_are_not_made(running):
    """Their order never grants more than is booked, so none of them may be skipped."""
    running.kernel.refuse = {"affinity": errno.EINVAL}

    assert (R, 0) in apply(running, change(0, ON_3, Step(bandwidth=LIMIT))).failures
    assert running.kernel.written == []


def test_paused_instance_is_not_written(node):
    """Neither limit, affinity nor CPU weight: reported with the reason; others are changed."""
    node.start("web")
    node.start("other", pid=4100)
    node.see("web")
    node.paused[resource("web")] = "paused by an operator"
    steps = (ON_3, Step(bandwidth=LIMIT))

    outcome = apply(node, change(0, *steps, name="web"), change(1, name="other"), web=10)

    failure = Failure("paused", "paused by an operator")
    assert outcome == Outcome({(resource("web"), 0): failure}, {resource("web"): failure})
    assert node.host.limit("web").split()[0] in ("max", "-1")
    assert node.see("web").vcpus[0].pcpus == frozenset(range(8))
    assert node.see("web").cpu_weight == 100
    assert node.host.limit("other", 1) == "5000 20000"


LOST = "the agent's lease has expired"


def fenced(node, after):
    """The writer's lease is lost after so many checks."""
    checks = iter([""] * after)
    found = replace(node.writer._conditions, lost=lambda: next(checks, LOST))
    node.writer._conditions = found


@pytest.mark.parametrize("limit", [None, LESS])
@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_nothing_is_written_once_the_lease_is_lost(node, writes, limit):
    """It is checked before each write, also of a limit that waits for its period."""
    node.start()
    if limit is not None:
        apply(node, *(change(i, Step(bandwidth=limit)) for i in (0, 1)))
    node.see()
    before = node.kernel.writes
    fenced(node, writes)

    outcome = apply(node, *(change(i, ON_3, Step(bandwidth=LIMIT)) for i in (0, 1)))

    places = [node.see().vcpus[i].pcpus == {3} for i in (0, 1)]
    limits = [node.host.limit(index=i) == "5000 20000" for i in (0, 1)]
    assert sum(places) + sum(limits) == writes
    assert (node.kernel.writes == before) == (writes == 0)
    said = f"{LOST}: until the agent takes a new one, only the guard writes"
    assert set(outcome.failures.values()) == {Failure("lease", said)}


def test_no_cpu_weight_is_set_once_the_lease_is_lost(node):
    """It is a write like any other."""
    node.start()
    node.see()
    fenced(node, 0)

    outcome = apply(node, **{NAME: 10})

    assert [f.reason for f in outcome.weight_failures.values()] == ["lease"]
    assert node.see().cpu_weight == 100


def test_apply_waits_for_the_process_that_holds_the_lock(tmp_path, monkeypatch):
    """With the real lock file: nothing is written until it is free. A tick does not wait."""
    state_path, began, outcomes, waits = tmp_path / "state", threading.Event(), [], []

    def lock(wait_s):
        waits.append(wait_s)
        began.set()
        return locked(state_path, "cycle.lock", wait_s=wait_s)

    node = Node(tmp_path / "host", monkeypatch, lock=lock)
    node.start()
    node.see()
    with locked(state_path, "cycle.lock", wait_s=10):
        thread = threading.Thread(target=lambda: outcomes.append(apply(node, change())))
        thread.start()
        assert began.wait(5)
        thread.join(0.1)
        assert thread.is_alive()
        assert node.kernel.writes == 0
        failures = node.writer.throttle({(R, 1): LIMIT})
        assert [(key, f.reason) for key, f in failures.items()] == [((R, 1), "locked")]
    thread.join(5)

    assert waits == [1.0, 0.0]
    assert outcomes == [Outcome()]
    assert node.host.limit() == "5000 20000"


@pytest.mark.parametrize("step", [ON_3, Step(bandwidth=LIMIT)], ids=["affinity", "limit"])
@pytest.mark.fault("thread id recycled", "the process that has it now is not written to")
def test_thread_whose_id_was_reused_is_not_written(running, step):
    """Its start time changed: it is another thread, which is no failure; the others are written."""
    running.host.reuse(0)

    assert apply(running, change(0, step), change(1, step)) == Outcome()

    assert running.kernel.affinity[running.host.tid(0)] == set(range(8))
    assert running.host.limit().split()[0] in ("max", "-1")
    made = running.see().vcpus[-1]
    assert (made.index, made.bandwidth == LIMIT, made.pcpus == {3}) == (
        1, step.bandwidth is not None, step.pcpus is not None,
    )  # fmt: skip


@pytest.mark.parametrize("more", [(), (Step(bandwidth=LIMIT),)], ids=["last", "first of two"])
def test_thread_that_is_replaced_during_a_write_is_gone(running, monkeypatch, more):
    """The target is verified after each write, too: nothing more is written to it."""
    real = running.kernel.set

    def replaced(tid, pcpus):
        real(tid, pcpus)
        running.host.reuse(0)

    monkeypatch.setattr(os, "sched_setaffinity", replaced)

    assert apply(running, change(0, ON_3, *more)) == Outcome()

    assert running.kernel.written == []
    assert running.sensor.thread((R, 0)) is None


@pytest.fixture
def booked(node):
    """A node with an instance that has its limit and its place."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    return node


@pytest.mark.parametrize("pauses", [{}, {R: "released"}], ids=["running", "paused"])
def test_release_leaves_nothing(booked, pauses):
    """No limit, every pCPU that libvirt allows, the default weight, and no lock taken.

    The command pauses an instance before it releases it, and has taken the lock itself.
    """
    assert booked.see().vcpus[0].pcpus == {0, 1}
    booked.paused.update(pauses)
    locks = booked.lock.taken

    assert booked.release() == []
    assert [(v.bandwidth, v.pcpus) for v in booked.see().vcpus] == [(None, {0, 1, 2, 3})] * 2
    assert booked.see().cpu_weight == 100
    assert booked.lock.taken == locks


def test_unreadable_instance_is_left_over(node):
    """An instance whose threads or definition cannot be read is not reported as released."""
    node.start()
    (node.host.run_path / f"{NAME}.pid").unlink()
    xml = parse(nova_xml("second"))
    broken = replace(xml, domain=replace(xml.domain, problem="garbage"))
    node.libvirt.known[resource("second")] = broken

    assert node.release()[0].startswith(f"{NAME}: its threads cannot be read")
    assert node.release("second") == ["second: garbage"]


def test_release_leaves_what_amp_nova_never_sets(node):
    """A quota of the domain's definition, and an operator's weight."""
    node.start(cputune="<quota>50000</quota><period>100000</period>", cpuset="0-3")
    node.host.set_limit(50000, 100000)
    put(node.host.weight(), {1: 3072, 2: 300}[node.host.version])
    node.see()

    lines = [f"{NAME} vCPU {i}: pCPUs 0-3" for i in (0, 1)]
    assert node.writer.undo(node.see()) == (lines, [])
    assert node.kernel.written == []
    assert node.see().vcpus[0].pcpus == {0, 1, 2, 3}
    assert node.see().vcpus[0].bandwidth == Bandwidth(50000, 100000)
