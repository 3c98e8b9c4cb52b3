"""The writer on a fake host; libvirt is a fake that knows domains."""

import errno
import os
import threading
from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.agent.operator.locks import locked
from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.host.writer import CgroupBackend
from amp_nova.model.allocation import Change, Changes, Outcome, Step
from amp_nova.model.bandwidth import Bandwidth
from tests.fakehost import Node, nova_xml, put, resource

NAME = "instance-00000001"
R = resource(NAME)
HALF = {"amp:pref_core": "0.5"}
LIMIT = Bandwidth(5000, 20000)
LESS = Bandwidth(4000, 20000)
EVERYWHERE = frozenset(range(4))
ON_3 = Step(pcpus=frozenset({3}))
WRITER = "amp_nova.host.writer"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def node(request, tmp_path, monkeypatch):
    """A fake node of either cgroup version."""
    return Node(tmp_path, monkeypatch, request.param)


def change(index=0, *steps, name=NAME):
    """A change of one vCPU: by default a limit."""
    return Change((resource(name), index), steps or (Step(bandwidth=LIMIT),))


def apply(node, *changes, **weights):
    """Apply changes of vCPUs, and set the CPU weights of instances, by name."""
    return node.writer.apply(Changes(changes, {resource(n): w for n, w in weights.items()}))


def test_changes_are_made(node):
    """Affinity and limit of a vCPU are set, without a failure."""
    node.start()
    node.see()

    outcome = apply(node, change(1, ON_3, Step(bandwidth=LIMIT)))

    assert outcome == Outcome()
    assert node.host.limit(index=1) == "5000 20000"
    assert node.see().vcpus[1].pcpus == {3}


def test_limit_in_force_is_not_written_again(node):
    """The same value again would refill the group and forgive its debt."""
    node.start()
    node.see()
    apply(node, change())
    before = list(node.kernel.written)

    assert apply(node, change()) == Outcome()
    assert node.kernel.written == before


def test_weight_is_set_before_the_limits(node):
    """Of the domain's group, in the same call: without it, a limit gives no precedence."""
    node.start("web")
    assert node.see("web").cpu_weight == 100

    assert apply(node, change(name="web"), web=1000) == Outcome()

    assert node.host.weight("web").read_text() == {1: "10240\n", 2: "1000\n"}[node.host.version]
    assert node.see("web").cpu_weight == 1000
    assert node.host.limit("web") == "5000 20000"
    assert node.kernel.written[0][0] == node.host.weight("web").name


@pytest.mark.parametrize("weight", [5, 100, 1000])
def test_an_instance_that_an_older_agent_left_in_the_idle_class_leaves_it(node, weight):
    """The kernel refuses to write the weight of a group that is in it."""
    node.start("web")
    idle = node.host.enter_idle_class("web")
    assert node.see("web").cpu_weight == 0

    assert apply(node, web=weight) == Outcome()

    assert idle.read_text() == "0\n"
    assert node.see("web").cpu_weight == weight


def test_an_instance_that_cannot_leave_the_idle_class_is_a_failure(node):
    """In the kernel's words."""
    node.start("web")
    node.host.enter_idle_class("web")
    node.see("web")
    node.kernel.refuse = {"cpu.idle": errno.EROFS}

    failure = apply(node, web=5).weight_failures[resource("web")]

    assert failure.message == "its CPU weight cannot be changed: Read-only file system"


@pytest.mark.parametrize(
    ("code", "reason"), [(errno.EROFS, "read_only"), (errno.EINVAL, "refused")]
)
def test_refused_weight_is_a_failure_of_the_instance(node, code, reason):
    """Counted and reported by instance, in the kernel's words; its limits are set nevertheless."""
    node.start("web")
    node.see("web")
    node.kernel.refuse = {node.host.weight("web").name: code}

    outcome = apply(node, change(name="web"), web=10)

    assert (outcome.failures, list(outcome.weight_failures)) == ({}, [resource("web")])
    failure = outcome.weight_failures[resource("web")]
    assert failure.reason == reason
    assert failure.message == f"its CPU weight cannot be changed: {os.strerror(code)}"
    assert node.host.limit("web") == "5000 20000"


def test_weight_that_reads_back_otherwise_is_a_failure(node):
    """A kernel that accepts the write and does something else is noticed."""
    node.start("web")
    node.see("web")
    node.kernel.twist = {"cpu.weight": "70\n", "cpu.shares": "717\n"}

    failure = apply(node, web=10).weight_failures[resource("web")]

    assert failure.reason == "refused"
    name, now, wanted = {1: ("shares", 717, 102), 2: ("weight", 70, 10)}[node.host.version]
    assert failure.message == (
        f"its CPU weight: the kernel reports the cpu.{name} {now} after {wanted} was set"
    )


def test_weight_of_an_instance_that_is_gone_is_no_failure(node):
    """Nor of one that was never here."""
    node.start("web")
    node.see("web")
    node.host.stop("web")

    assert apply(node, web=10, other=10) == Outcome()


def test_limit_that_replaces_another_one_is_written_as_a_period_begins(node, monkeypatch):
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
    node.start()
    node.see()
    node.sensor.thread((R, 1)).group.set_bandwidth(LIMIT)
    first, less, on_2 = Step(bandwidth=LIMIT), Step(bandwidth=LESS), Step(frozenset({2}))

    assert apply(node, change(0, first), change(1, ON_3, less, on_2)) == Outcome()

    assert waits == [{(R, 1): ("vcpu1", [first, ON_3])}]
    assert steps == [less, on_2]


@pytest.mark.parametrize("steps", [(Step(),), (ON_3,)], ids=["no limit", "affinity"])
def test_other_changes_of_a_limited_vcpu_do_not_wait(node, monkeypatch, steps):
    """A limit that is removed gives nothing away that the vCPU would not get anyway."""
    waits = []
    monkeypatch.setattr(f"{WRITER}.at_period_start", lambda groups, _act: waits.append(groups))
    node.start()
    node.see()
    apply(node, change())

    assert apply(node, change(0, *steps)) == Outcome()

    assert waits == [{}, {}]
    assert node.kernel.writes > 0


def test_domain_that_ends_before_it_is_changed_is_no_failure(node):
    """An instance may be shut down between observation and action."""
    node.start()
    node.see()
    node.host.stop()

    assert apply(node, change(0), change(1)) == Outcome()


def test_vcpu_that_is_gone_does_not_affect_the_others(node):
    """An unplugged vCPU is no failure, and the other vCPUs get their changes."""
    node.start()
    node.see()
    node.host.unplug(NAME, 0)

    assert apply(node, change(0), change(1)) == Outcome()
    assert node.host.limit(index=1) == "5000 20000"


def test_vcpus_are_searched_again_after_one_was_gone(node):
    """What ended between observation and action is read anew in the next cycle."""
    node.start()
    node.see()
    node.host.unplug(NAME, 0)
    apply(node, change(0))
    node.host.plug(NAME, 0)

    assert [v.index for v in node.see().vcpus] == [0, 1]


def test_vcpu_that_ends_while_others_wait_for_a_period_is_no_failure(node):
    """The others, which wait for their period to begin, get their new limit."""
    node.start()
    node.see()
    apply(node, change(0), change(1))
    node.host.unplug(NAME, 0)
    less = Step(bandwidth=LESS)

    assert apply(node, change(0, less), change(1, less)) == Outcome()
    assert node.host.limit(index=1) == "4000 20000"


def test_vcpu_is_managed_as_soon_as_it_has_its_group(node):
    """A vCPU that libvirt moves to its group a moment late is read in the next cycle."""
    node.start(vcpus=1)
    node.libvirt.define(vcpus=2)
    tid = node.host.plug(NAME, 1, group="emulator")
    assert node.see().failure
    node.host.group(NAME, "vcpu1")
    where = node.host.root / f"proc/4000/task/{tid}/cgroup"
    where.write_text(where.read_text().replace("emulator", "vcpu1"))

    seen = node.see()

    assert (seen.failure, [v.index for v in seen.vcpus]) == (None, [0, 1])


def test_unknown_vcpu_is_no_failure(node):
    """A change of a vCPU that was never observed does nothing."""
    assert apply(node, change(5)) == Outcome()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (errno.EROFS, "read_only"),
        (errno.EACCES, "read_only"),
        (errno.EPERM, "read_only"),
        (errno.EINVAL, "refused"),
        (errno.EBUSY, "refused"),
    ],
)
def test_refusal_by_the_kernel_is_counted_and_reported(node, code, reason):
    """A read-only cgroup and an invalid value have different reasons, in the kernel's words."""
    node.start()
    node.see()
    node.kernel.refuse = {"cpu.max": code, "cpu.cfs_quota_us": code, "cpu.cfs_period_us": code}

    failures = apply(node, change(), change(1, ON_3)).failures

    assert list(failures) == [(R, 0)]
    assert failures[R, 0].reason == reason
    assert failures[R, 0].message == f"vCPU 0 cannot be changed: {os.strerror(code)}"


def test_refused_affinity_is_reported(node):
    """An affinity that the kernel refuses is a failure, too."""
    node.start()
    node.see()

    failures = apply(node, change(0, Step(pcpus=frozenset({77})))).failures

    assert failures[R, 0].message == "vCPU 0 cannot be changed: Invalid argument"


def test_narrower_affinity_than_written_is_a_failure(node):
    """The kernel silently cuts a mask to the cpuset."""
    node.start()
    node.see()
    node.kernel.pcpus = frozenset({2})

    failures = apply(node, change(0, Step(pcpus=frozenset({2, 3})))).failures

    assert failures[R, 0].reason == "refused"
    assert failures[R, 0].message == (
        "vCPU 0: the kernel keeps it on pCPUs [2] instead of [2, 3]: "
        "its cpuset does not contain them all"
    )


def test_limit_that_reads_back_otherwise_is_refused(node):
    """A limit that did not arrive is a failure of that vCPU."""
    node.start()
    node.see()
    node.kernel.twist = {"cpu.max": "9000 20000\n", "cpu.cfs_quota_us": "9000\n"}

    failures = apply(node, change()).failures

    assert failures[R, 0].reason == "refused"
    assert "9000/20000 us after the limit 5000/20000 us was set" in failures[R, 0].message


def test_later_steps_of_a_failed_change_are_not_made(node):
    """Their order never grants more than is booked, so none of them may be skipped."""
    node.start()
    node.see()
    node.kernel.refuse = {"affinity": errno.EINVAL}

    assert (R, 0) in apply(node, change(0, ON_3, Step(bandwidth=LIMIT))).failures
    assert node.kernel.written == []


def test_paused_instance_is_not_written(node):
    """Neither limit, affinity nor CPU weight: reported with the reason; others are changed."""
    node.start("web")
    node.start("other", pid=4100)
    node.see("web")
    node.paused[resource("web")] = "paused by an operator"
    steps = (ON_3, Step(bandwidth=LIMIT))

    outcome = apply(node, change(0, *steps, name="web"), change(1, name="other"), web=10)

    failures = {**outcome.failures, **outcome.weight_failures}
    assert failures.keys() == {(resource("web"), 0), resource("web")}
    assert {(f.reason, f.message) for f in failures.values()} == {
        ("paused", "paused by an operator")
    }
    assert node.host.limit("web").split()[0] in ("max", "-1")
    assert node.see("web").vcpus[0].pcpus == frozenset(range(8))
    assert node.see("web").cpu_weight == 100
    assert node.host.limit("other", 1) == "5000 20000"


def test_nothing_at_all_is_written_while_every_instance_is_paused(node):
    """Not even the value that is in force."""
    node.start("web")
    node.see("web")
    node.paused[resource("web")] = "paused"

    apply(node, change(0, ON_3, name="web"), change(1, name="web"), web=10)
    node.writer.throttle({(resource("web"), i): LIMIT for i in range(2)})

    assert node.kernel.writes == 0


def test_paused_instance_is_not_throttled(node):
    """Reported with the reason; other instances get their limit."""
    node.start()
    node.start("other", pid=4100)
    node.see()
    node.paused[R] = "paused by an operator"

    failures = node.writer.throttle({(R, 0): LIMIT, (resource("other"), 0): LIMIT})

    assert {k: (f.reason, f.message) for k, f in failures.items()} == {
        (R, 0): ("paused", "paused by an operator")
    }
    assert node.host.limit().split()[0] in ("max", "-1")
    assert node.host.limit("other") == "5000 20000"


def test_pause_takes_effect_between_two_writes(node):
    """Pauses are read at each call, not when the writer was made."""
    node.start()
    node.see()
    node.writer.throttle({(R, 0): LIMIT})
    node.paused[R] = "paused"
    node.writer.throttle({(R, 0): LESS})
    assert node.host.limit() == "5000 20000"
    node.paused.clear()

    assert node.writer.throttle({(R, 0): LESS}) == {}
    assert node.host.limit() == "4000 20000"


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
    assert {f.reason for f in outcome.failures.values()} == {"lease"}
    assert {f.message for f in outcome.failures.values()} == {
        f"{LOST}: until the agent takes a new one, only the guard writes"
    }


def test_nothing_is_throttled_once_the_lease_is_lost(node):
    """The fast loop writes between cycles."""
    node.start()
    node.see()
    fenced(node, 1)

    failures = node.writer.throttle({(R, 0): LIMIT, (R, 1): LIMIT})

    assert {key: f.reason for key, f in failures.items()} == {(R, 1): "lease"}
    assert node.host.limit(index=0) == "5000 20000"
    assert node.host.limit(index=1).split()[0] in ("max", "-1")


def test_apply_takes_the_lock(node):
    """It waits for the lock, and makes every write while it has it."""
    node.start("web")
    node.see("web")

    apply(node, change(0, ON_3, Step(bandwidth=LIMIT), name="web"), web=10)
    apply(node, change(0, Step(bandwidth=LESS), name="web"))  # waits for a period to begin

    (wait, began, between), (again, after, end) = node.lock.taken
    assert wait
    assert again
    assert 0 == began < between == after < end == node.kernel.writes


def test_apply_without_changes_does_not_take_the_lock(node):
    """A cycle in the steady state does not wait for other processes."""
    node.start()
    node.see()

    assert apply(node) == Outcome()
    assert node.lock.taken == []


def test_apply_waits_for_the_process_that_holds_the_lock(tmp_path, monkeypatch):
    """With the real lock file: nothing is written until it is free."""
    state_path, began, outcomes = tmp_path / "state", threading.Event(), []

    def lock(wait_s):
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
        assert list(failures) == [(R, 1)]
    thread.join(5)

    assert outcomes == [Outcome()]
    assert node.host.limit() == "5000 20000"


def test_throttle_takes_the_lock_without_waiting(node):
    """It writes while it has the lock."""
    node.start()
    node.see()

    assert node.writer.throttle({(R, 0): LIMIT}) == {}

    assert node.lock.taken == [(False, 0, node.kernel.writes)]
    assert node.kernel.writes > 0


def test_throttle_writes_nothing_while_another_process_holds_the_lock(node):
    """Every vCPU has a failure, and the next attempt succeeds."""
    node.start()
    node.see()
    node.lock.elsewhere = True
    keys = [(R, 0), (R, 1)]

    failures = node.writer.throttle(dict.fromkeys(keys, LIMIT))

    assert list(failures) == keys
    assert {f.reason for f in failures.values()} == {"locked"}
    assert node.kernel.writes == 0
    node.lock.elsewhere = False
    assert node.writer.throttle(dict.fromkeys(keys, LIMIT)) == {}
    assert node.host.limit(index=1) == "5000 20000"


@pytest.mark.parametrize("step", [ON_3, Step(bandwidth=LIMIT)], ids=["affinity", "limit"])
@pytest.mark.fault("thread id recycled", "the process that has it now is not written to")
def test_thread_whose_id_was_reused_is_not_written(node, step):
    """Its start time changed: it is another thread, which is no failure; the others are written."""
    node.start()
    node.see()
    node.host.reuse(0)

    assert apply(node, change(0, step), change(1, step)) == Outcome()

    assert node.kernel.affinity[node.host.tid(0)] == set(range(8))
    assert node.host.limit().split()[0] in ("max", "-1")
    made = node.see().vcpus[-1]
    assert (made.index, made.bandwidth == LIMIT, made.pcpus == {3}) == (
        1,
        step.bandwidth is not None,
        step.pcpus is not None,
    )


def test_thread_whose_id_was_reused_is_not_throttled(node):
    """Nor is that a failure to retry."""
    node.start()
    node.see()
    node.host.reuse(0)

    assert node.writer.throttle({(R, 0): LIMIT}) == {}
    assert node.kernel.writes == 0


@pytest.mark.parametrize("more", [(), (Step(bandwidth=LIMIT),)], ids=["last", "first of two"])
def test_thread_that_is_replaced_during_a_write_is_gone(node, monkeypatch, more):
    """The target is verified after each write, too: nothing more is written to it."""
    node.start()
    node.see()
    real = node.kernel.set

    def replaced(tid, pcpus):
        real(tid, pcpus)
        node.host.reuse(0)

    monkeypatch.setattr(os, "sched_setaffinity", replaced)

    assert apply(node, change(0, ON_3, *more)) == Outcome()

    assert node.kernel.written == []
    assert node.sensor.thread((R, 0)) is None


def test_release_leaves_nothing(node):
    """A released instance has no limit, and every pCPU that libvirt allows it."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    assert node.see().vcpus[0].pcpus == {0, 1}

    assert node.release() == ()
    assert [(v.bandwidth, v.pcpus) for v in node.see().vcpus] == [(None, {0, 1, 2, 3})] * 2


@pytest.mark.parametrize("weight", [10, 1000])
def test_release_gives_the_default_weight_back(node, weight):
    """And reports it when that fails."""
    node.start()
    node.see()
    apply(node, **{NAME: weight})
    node.kernel.refuse = {node.host.weight().name: errno.EROFS}
    assert node.release() == (f"{NAME}: its CPU weight cannot be changed: Read-only file system",)
    node.kernel.refuse = {}

    assert node.release() == ()
    assert node.see().cpu_weight == 100


def test_release_leaves_the_idle_class_of_an_older_agent(node):
    """The weight after it is the default."""
    node.start()
    idle = node.host.enter_idle_class()

    assert node.release() == ()
    assert (idle.read_text(), node.see().cpu_weight) == ("0\n", 100)


def test_release_leaves_a_weight_that_amp_nova_never_sets(node):
    """An operator's."""
    node.start()
    node.see()
    apply(node, **{NAME: 300})

    assert node.release() == ()
    assert node.see().cpu_weight == 300


def test_release_works_on_paused_instances_under_the_callers_lock(node):
    """The command pauses an instance before it releases it, and has taken the lock itself."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    node.paused[R] = "released"
    locks = list(node.lock.taken)

    assert node.release() == ()
    assert node.see().vcpus[0].bandwidth is None
    assert node.lock.taken == locks


def test_release_does_not_write_to_a_thread_whose_id_was_reused(node):
    """It is gone, so nothing is left over."""
    node.start(vcpus=1, specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    seen, writes = node.see(), node.kernel.writes
    node.host.reuse(0)

    assert node.writer.release(seen) == ()
    assert node.kernel.writes == writes + 1  # the weight of the domain, which is still there
    assert node.kernel.written[-1][0] == node.host.weight().name


def test_release_reports_what_is_left(node):
    """What cannot be restored is a sentence that names the domain."""
    node.start(specs=HALF)
    Loop(node.sensor, node.writer).cycle()
    node.kernel.refuse = {"cpu.max": errno.EROFS, "cpu.cfs_quota_us": errno.EROFS}

    assert node.release() == tuple(
        f"{NAME}: vCPU {i} cannot be changed: Read-only file system" for i in range(2)
    )


def test_unreadable_instance_is_left_over(node):
    """An instance whose threads or definition cannot be read is not reported as released."""
    node.start()
    (node.host.run_path / f"{NAME}.pid").unlink()
    xml = parse(nova_xml("second"))
    broken = replace(xml, domain=replace(xml.domain, problem="garbage"))
    node.libvirt.known[resource("second")] = broken

    assert node.release()[0].startswith(f"{NAME}: its threads cannot be read")
    assert node.release("second") == ("second: garbage",)


def test_release_leaves_libvirts_own_quota(node):
    """A quota of the domain's definition stays; the affinity is restored."""
    node.start(cputune="<quota>50000</quota><period>100000</period>", cpuset="0-3")
    quota = ("cpu.max", "50000 100000") if node.host.version == 2 else ("cpu.cfs_quota_us", 50000)
    put(node.host.group(NAME, "vcpu0") / quota[0], quota[1])

    assert node.release() == ()
    assert node.kernel.written == []
    assert node.see().vcpus[0].pcpus == {0, 1, 2, 3}
    assert node.see().vcpus[0].bandwidth == Bandwidth(50000, 100000)


def test_release_tries_everything(node):
    """If an affinity cannot be restored, the limit is removed nevertheless."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    node.kernel.refuse = {"affinity": errno.EINVAL}

    assert len(node.release()) == 2
    assert [v.bandwidth for v in node.see().vcpus] == [None, None]


def test_release_of_an_instance_that_ended_does_nothing(node):
    """An instance that ended after it was read has nothing to restore."""
    node.start(specs=HALF, cpuset="0-3")
    Loop(node.sensor, node.writer).cycle()
    seen = node.see()
    node.host.stop()

    assert node.writer.release(seen) == ()


def test_undo_lines_tell_what_release_would_change(node):
    """A line per vCPU and for the CPU weight, and nothing is written."""
    node.start(specs=HALF, cpuset="0-3")
    node.see()
    apply(node, change(0, ON_3, Step(bandwidth=LIMIT)), change(1, Step(EVERYWHERE)), **{NAME: 1000})
    writes = node.kernel.writes

    assert node.writer.undo_lines(node.see()) == [
        f"{NAME} vCPU 0: pCPUs 0-3, no quota",
        f"{NAME}: CPU weight 100",
    ]
    assert node.kernel.writes == writes
    node.release()
    assert node.writer.undo_lines(node.see()) == []


def test_undo_lines_leave_out_libvirts_own_quota(node):
    """It stays, so there is nothing to tell."""
    node.start(cputune="<quota>50000</quota><period>100000</period>")
    node.kernel.affinity = {tid: set(range(4)) for tid in node.kernel.affinity}
    quota = ("cpu.max", "50000 100000") if node.host.version == 2 else ("cpu.cfs_quota_us", 50000)
    put(node.host.group(NAME, "vcpu0") / quota[0], quota[1])

    assert node.writer.undo_lines(node.see()) == []
