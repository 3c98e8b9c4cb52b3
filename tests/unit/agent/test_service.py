"""The agent as a service: wiring, pace, signals; on a fake host."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova import conf as options  # only where libvirt is
from amp_nova.agent import service
from amp_nova.agent.operator import control_socket
from amp_nova.agent.operator.pause import Holds
from amp_nova.agent.state.speedup_history import Lessons
from amp_nova.exceptions import AmpError, ConfigInvalid, HypervisorUnavailable
from amp_nova.host.io.node import IoHost
from amp_nova.model.allocation import Change, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova.profiling.speedup import MissSample
from tests import reports
from tests.fakehost import Node, resource

NAME = "instance-00000001"
HALF = {"amp:pref_core": "0.5"}


class Setup:
    """A configuration, a fake node, and the service over them."""

    def __init__(self, tmp_path, monkeypatch):
        self.tmp_path = tmp_path
        self.node = Node(tmp_path / "host", monkeypatch)
        self.wake = None
        monkeypatch.setattr(service, "make_host", self._make_host)

    def _make_host(self, conf, wake=None):
        self.wake = wake
        holds = Holds(self.tmp_path / "state")
        self.node.node._held = holds.current
        return self.node.node

    def conf(self, cycle_s=0.05, **more):
        """A configuration whose state is below the test's folder."""
        path = self.tmp_path / "amp-nova.conf"
        agent = {"state_path": self.tmp_path / "state", "cycle_s": cycle_s, **more}
        lines = [f"{k} = {v}" for k, v in agent.items()]
        path.write_text("\n".join(["[exporter]\nport = 0\n[agent]", *lines]) + "\n")
        return options.load(files=[str(path)])


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A fake node with its configuration."""
    (tmp_path / "host").mkdir()
    monkeypatch.setattr(control_socket, "_POLL_S", 0.01)
    return Setup(tmp_path, monkeypatch)


def run_until(running, condition):
    """Run the service in this thread until another one sees the condition; then end it."""
    seen = []

    def watch():
        end = time.monotonic() + 10
        try:
            while not (seen or time.monotonic() > end):
                if condition():
                    seen.append(True)
                time.sleep(0.005)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda *_: None)  # should it end before it listens
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        running.run()
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen, "what was waited for did not happen within 10 s"


def test_configured_bookings_are_read():
    """A pattern, then extra specs."""
    found = service.fallbacks(["web-* amp:pref_core=0.5 amp:limit=hard", "* amp:ips.1=2G"])

    assert [(f.pattern, f.specs) for f in found] == [
        ("web-*", {"amp:pref_core": "0.5", "amp:limit": "hard"}),
        ("*", {"amp:ips.1": "2G"}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it names no extra spec"),
        ("web-*", "it names no extra spec"),
        ("web-* amp:pref_core", "amp:pref_core='' is not allowed"),
        ("web-* amp:pref_core=x", "amp:pref_core='x' is not allowed"),
        ("web-* amp:pref_cor=1", "did you mean amp:pref_core?"),
        ("web-* hw:x=1", "only amp:* keys may be given"),
        ("web-* amp:pref_core=1 quota:cpu_quota=1", "would both set the CPU quota"),
        ("amp:pref_core=1", "it names no extra spec"),
    ],
)
def test_bad_booking_line_is_one_sentence(line, reason):
    """The line, what is wrong with it, and how to write it."""
    with pytest.raises(ConfigInvalid) as caught:
        service.fallbacks(["* amp:weight=2", line])

    assert f"[agent] booking = {line}: " in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("; write PATTERN amp:KEY=VALUE...")


def test_second_agent_is_refused(tmp_path):
    """Two agents would fight over the same limits."""
    with (
        service.locked(tmp_path, "agent.lock", wait=False),
        pytest.raises(ConfigInvalid, match="another amp-nova-agent runs here"),
        service.locked(tmp_path, "agent.lock", wait=False),
    ):
        pass


def test_lock_is_free_again_after_its_holder(tmp_path):
    """Also after one that failed, and without a descriptor left open."""
    with pytest.raises(BlockingIOError), service.locked(tmp_path, "x", wait=False):
        raise BlockingIOError("not the lock's")

    with service.locked(tmp_path, "x", wait=False):
        pass


def test_state_path_that_cannot_be_written_is_one_sentence(tmp_path):
    """The folder and the remedy."""
    (tmp_path / "file").touch()
    where = tmp_path / "file" / "state"

    with (
        pytest.raises(ConfigInvalid) as caught,
        service.locked(where, "agent.lock", wait=False),
    ):
        pass

    assert str(caught.value) == (
        f"[agent] state_path {where} cannot be written (Not a directory): run this as root or set "
        "another folder"
    )


def test_settings_are_the_configured_ones(setup):
    """What an operator configures reaches the loop."""
    conf = setup.conf(reserve_ratio=0.1, affinity="pcpu", drift_repairs_max=7)

    found = service.settings(conf, dry_run=True)

    assert (found.terms.reserve_ratio, found.terms.one_pcpu) == (0.1, True)
    assert (found.drift_repairs_max, found.dry_run) == (7, True)


def test_one_cycle_enforces(setup):
    """Once is enough for a booking to be kept."""
    setup.node.start(specs=HALF)

    report = service.Service(setup.conf()).once()

    assert report.changes == 2
    assert setup.node.host.limit().split()[0] != "max"


def test_dry_run_changes_nothing(setup):
    """It decides the same and writes nothing."""
    setup.node.start(specs=HALF)
    dry = service.Service(setup.conf(), dry_run=True)

    report = dry.once()

    assert len(dry.loop.changes) == report.changes == 2
    assert setup.node.kernel.written == []


def test_a_restart_remembers_what_was_learnt(setup):
    """What instances taught about cache misses is read back, and kept when there is news."""
    conf, lesson = setup.conf(), MissSample(1, 0, 210.0, 90.0)
    state = setup.tmp_path / "state"
    types = service.Service(conf).once().topology.core_types
    Lessons(state).keep(types, {("vm", 0): lesson})

    running = service.Service(conf)
    running.once()

    assert running.loop.lessons == {("vm", 0): lesson}


def test_service_runs_until_it_is_told_to_stop(setup):
    """It answers, serves metrics and cycles; SIGTERM ends it, the limits stay in force."""
    setup.node.start(specs=HALF)
    running = service.Service(setup.conf())
    state = setup.tmp_path / "state"

    run_until(running, lambda: "status" in (control_socket.ask(state, {"ask": "status"}) or {}))

    assert setup.node.host.limit().split()[0] != "max"
    assert not control_socket.path(state).exists()
    assert running.exporter.agent.lateness_s is not None


def test_event_starts_a_cycle_at_once(setup):
    """A new instance does not wait for the next period."""
    running = service.Service(setup.conf(cycle_s=60))
    started = []

    def condition():
        if running.report is not None and not started:
            started.append(setup.node.start(specs=HALF))
            setup.wake.set()
        return bool(running.report and running.report.domains)

    began = time.monotonic()
    run_until(running, condition)

    assert time.monotonic() - began < 10


def test_events_do_not_put_off_the_period(setup):
    """However many events there are, the periodic cycles keep their pace, and none is a storm."""
    running = service.Service(setup.conf(cycle_s=0.1))
    cycles = []
    running._try_cycle = lambda: cycles.append(time.monotonic())
    began = time.monotonic()

    def condition():
        if time.monotonic() - began < 0.3:
            setup.wake.set()
            return False
        return time.monotonic() - began > 0.8

    run_until(running, condition)

    stormy = [t for t in cycles if t - began < 0.3]
    calm = [t for t in cycles if t - began > 0.35]
    assert 0 < len(stormy) <= 0.3 / service.EVENT_GAP_S + 2
    assert len(calm) >= 3


def test_hypervisor_that_is_away_is_told_once(setup, caplog, monkeypatch):
    """The agent goes on asking and does not fill the log."""
    running = service.Service(setup.conf())
    error = HypervisorUnavailable("libvirt is away")
    with monkeypatch.context() as patch:
        patch.setattr(setup.node.libvirt, "domains", lambda: (_ for _ in ()).throw(error))
        for _ in range(3):
            running._try_cycle()
    assert caplog.text.count("libvirt is away") == 1
    assert running.exporter.agent.hypervisor_up is False

    running._try_cycle()

    assert running.exporter.agent.hypervisor_up is True


def test_fault_of_the_fast_loop_is_told_once(setup, caplog):
    """It looks dozens of times a second; what fails every time shall not fill the log."""
    running = service.Service(setup.conf())
    faults = iter([True, True, True, False, True])
    fast = SimpleNamespace(tick=lambda: {}["a fault"] if next(faults) else None)

    for count in (1, 1, 1, 1, 2):
        running._try_look(fast)
        assert caplog.text.count("a look of the fast loop failed") == count


def test_fault_in_a_cycle_does_not_end_the_agent(setup, caplog):
    """Whatever goes wrong is logged, and the next cycle starts anew."""
    running = service.Service(setup.conf())
    running.loop.act = lambda: {}["a fault"]

    running._try_cycle()

    assert "a control cycle failed; going on with the next one" in caplog.text


def test_question_before_the_first_cycle_is_answered(setup):
    """An agent that has just started says so."""
    answer = service.Service(setup.conf())._answer({"ask": "status"})

    assert answer == {"error": "the agent has not finished a cycle yet: see its log"}


def test_instance_is_explained_by_any_of_its_names(setup):
    """UUID, libvirt name or Nova name; one that is not here is a sentence."""
    setup.node.start(specs=HALF)
    running = service.Service(setup.conf())
    running.once()

    for name in (resource(NAME), NAME, "web & shop"):
        answer = running._answer({"ask": "explain", "instance": name})
        assert answer["explain"]["domain"] == NAME
    with pytest.raises(AmpError, match="no instance 'x' on this host"):
        running._answer({"ask": "explain", "instance": "x"})


def test_changes_are_described_for_people():
    """Which vCPU of which domain gets what, and why; and what failed."""
    one = reports.booked()
    two = reports.booked(1, failure="the group is read-only")
    report = reports.report(reports.instance(one, two))
    uuid = f"uuid-of-{NAME}"
    steps = (Step(bandwidth=Bandwidth(25000, 100000)), Step(pcpus=frozenset({3, 2})))
    why = "0.5 refcores / 2 on fast"
    changes = (Change((uuid, 0), steps, why), Change((uuid, 1), (Step(bandwidth=None),), why))

    assert service.describe(changes, report) == [
        f"{NAME} vCPU 0: quota 25000/100000 us, pCPUs 2,3 (0.5 refcores / 2 on fast)",
        f"{NAME} vCPU 1: no quota (0.5 refcores / 2 on fast) FAILED: the group is read-only",
    ]


HERE = {
    "uuid-1": ("instance-1", "web"),
    "uuid-2": ("instance-2", "instance-1"),
    "uuid-3": ("instance-3", "web"),
    "uuid-4": ("uuid-1", "db"),
}


@pytest.mark.parametrize(
    ("name", "uuid"),
    [("uuid-1", "uuid-1"), ("instance-1", "uuid-1"), ("db", "uuid-4"), ("instance-2", "uuid-2")],
)
def test_names_are_tried_from_the_surest_on(name, uuid):
    """UUID before libvirt name before Nova name: users choose Nova names as they like."""
    assert service.resolve(name, HERE) == uuid


@pytest.mark.parametrize("name", ["web", "nobody", ""])
def test_name_of_several_or_of_none_is_an_error(name):
    """Nothing is guessed."""
    with pytest.raises(AmpError, match=r"several instances|no instance"):
        service.resolve(name, HERE)


@pytest.mark.parametrize(("policy", "names"), [("none", [NAME]), ("acfs", [NAME, "other"])])
def test_release_frees_all_booked_instances_and_holds_them(setup, policy, names):
    """Nothing of ours is left, the agent keeps off, and others' instances are not touched.

    Best effort that a policy placed is ours, too.
    """
    setup.node.start(specs=HALF)
    setup.node.start("other", pid=4100)
    conf = setup.conf(policy=policy)
    running = service.Service(conf)
    running.once()

    released, left = service.release(conf, None)
    again = running.once()

    assert (released, left) == (names, [])
    assert not [v for d in again.domains for v in d.vcpus if v.reading.pcpus < v.reading.allowed]
    assert setup.node.host.limit().split()[0] == "max"
    assert again.changes == 0
    assert list(Holds(setup.tmp_path / "state").current()) == [resource(n) for n in names]


@pytest.mark.parametrize(
    ("parameters", "match"),
    [
        ({"policy": "amp-most"}, "no policy 'amp-most' is installed; known: .*acfs"),
        ({"policy_parameter": "swap_s"}, "policy_parameter = swap_s: write KEY=VALUE"),
        ({"policy_parameter": "swap_s=1\npolicy_parameter = swap_s=2"}, "each key once"),
        ({"policy_parameter": "speed=1"}, "policy 'acfs' has no parameter 'speed'"),
        ({"policy_parameter": "unfairness_factor=0.5"}, "give a number of at least 1"),
    ],
)
def test_a_policy_that_cannot_be_had_is_told_at_the_start(setup, parameters, match):
    """One sentence, with what there is."""
    with pytest.raises(AmpError, match=match):
        service.Service(setup.conf(**parameters))


def test_the_policy_of_the_configuration_places_best_effort(setup):
    """By name, with its parameters; the log says who decided."""
    setup.node.start("free")
    running = service.Service(setup.conf(policy="amp-r-fair", policy_parameter="fair_ratio=0.35"))

    report = running.once()

    assert {len(v.reading.pcpus) for d in running.once().domains for v in d.vcpus} == {1}
    lines = service.describe(running.loop.changes, report)
    assert lines == []
    assert report.changes == 2


def test_release_of_a_stranger_holds_nothing(setup):
    """One wrong name, and nothing is done."""
    setup.node.start(specs=HALF)

    with pytest.raises(AmpError, match="no instance 'x'"):
        service.release(setup.conf(), [NAME, "x"])

    assert Holds(setup.tmp_path / "state").current() == {}


def test_age_of_the_calibration_is_told_where_it_is_in_use(setup, monkeypatch):
    """A calibration that the topology rests on has an age; one that is not used has none."""
    monkeypatch.setattr(service, "made_s", lambda path: 77.0)
    conf = setup.conf()

    assert service.calibrated_s(conf, reports.topology()) == 77.0
    assert service.calibrated_s(conf, setup.node.topology) is None


def test_calibration_that_was_taken_away_has_no_age(setup):
    """The coefficients hold on; nothing is said of a file that is not there."""
    conf = setup.conf()
    conf.set_override("calibration_file", str(setup.tmp_path / "gone.json"), "topology")

    assert service.calibrated_s(conf, reports.topology()) is None


def test_doubts_about_the_calibration_are_in_the_log_once(setup, caplog):
    """A calibration that does not match the machine is warned of at the start, not every cycle."""
    from dataclasses import replace

    node = setup.node.node
    node._topology = replace(node._topology, warnings=("the calibration is 500 days old",))
    running = service.Service(setup.conf())

    run_until(running, lambda: running.report and running.report.totals.cycles > 2)

    assert caplog.text.count("the calibration is 500 days old") == 1


def vcpu_tids(setup):
    return {setup.node.host.tid(i) for i in range(2)}


def test_release_takes_io_threads_home_and_resume_gives_them_back(setup, monkeypatch):
    """Also of an instance without a booking: what the agent moved is what it puts back."""
    setup.node.kernel.pcpus = frozenset(range(4))
    setup.node.start(NAME)
    conf = setup.conf(io_work="slow")
    io = IoHost(setup.node.libvirt, setup.node.host.run_path, setup.tmp_path / "host")
    monkeypatch.setattr(service, "make_io_host", lambda _conf, _host: io)
    (tid,) = setup.node.kernel.affinity.keys() - vcpu_tids(setup)
    setup.node.kernel.affinity[tid] = {0, 1}

    assert service.release(conf, None) == ([], [])  # set by hand: no marker says it was the agent
    assert setup.node.kernel.affinity[tid] == {0, 1}

    service.io_marker(conf).touch()
    assert service.release(conf, None) == ([NAME], [])
    assert setup.node.kernel.affinity[tid] == {0, 1, 2, 3}
    assert "released" in Holds(setup.tmp_path / "state").current()[resource(NAME)]


def test_no_name_is_nobodys():
    """A script's empty variable is not the instance that has no name in Nova."""
    with pytest.raises(AmpError, match="no instance '' on this host"):
        service.resolve("", {"uuid": ("instance-00000001", "")})
