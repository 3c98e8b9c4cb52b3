# SPDX-License-Identifier: Apache-2.0
"""I/O work in the agent: what moves, what does not, and what is exported and explained."""

import pytest
from prometheus_client import CollectorRegistry

from amp_nova.agent.io_work import IoWork, because
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova.profiling.io_overlap import Interface, IoReading, IoThread
from tests.support import reports
from tests.support.fakehost import topology

HOME, SLOW = frozenset(range(4)), frozenset({0, 1})
LINE = 1e9
TID = ord("a")
"""The one I/O thread of the domain ``a``."""
INSENSITIVE, SENSITIVE = (0.79, 0.5), (0.65, 0.1)
"""CPU and network that I/O threads use."""


class FakeIo:
    """A FAKE ``IoPort``: domains whose I/O threads use as much as a test sets."""

    def __init__(self):
        self.now_s = 0.0
        self.reads = 0
        self.homes = {}
        self.pcpus = {}
        self.use = {}
        self.totals = {}
        self.lives = {}
        self.failure = None
        self.available = True
        self.moved = []

    def add(self, name, use):
        """A domain with one emulator thread, whose id derives from the name."""
        self.homes[name], self.pcpus[name] = {ord(name): HOME}, {ord(name): HOME}
        self.use[name], self.totals[name] = use, [0.0, 0.0]

    def wait(self, seconds=2.5):
        self.now_s += seconds
        for name, (cpu, network) in self.use.items():
            self.totals[name][0] += cpu * seconds
            self.totals[name][1] += network * LINE * seconds

    def read(self, _topology):
        if not self.available:
            raise HypervisorUnavailable("libvirt does not answer")
        self.reads += 1
        found = []
        for name, pcpus in self.pcpus.items():
            cpu_s, sent = self.totals[name]
            threads = tuple(
                IoThread(t, "emulator", round(cpu_s * 1e9), p, self.homes[name][t])
                for t, p in pcpus.items()
            )
            nics = (Interface("tap", 0, round(sent), LINE, LINE),)
            life = self.lives.get(name, "first")
            now_ns = round(self.now_s * 1e9)
            found.append(IoReading(name, f"name-{name}", "p", life, now_ns, threads, nics))
        return found

    def move(self, resource, wanted):
        if self.failure:
            return self.failure
        self.moved.append((resource, dict(wanted)))
        self.pcpus[resource].update(wanted)
        return None


class Work:
    """I/O work over a fake host with a domain ``a``, which is insensitive to core speed."""

    def __init__(self, marker=None, of=None, **settings):
        self.host, self.of, self.paused = FakeIo(), of or topology(), {}
        self.marker, self.settings = marker, {"work": "slow", **settings}
        self.host.add("a", INSENSITIVE)
        self.start()

    def start(self):
        """Start the agent, or restart it."""
        self.work = IoWork(self.host, **self.settings, marker=self.marker)

    def run(self, intervals=1):
        """Let intervals pass; returns all log lines."""
        lines = []
        for _ in range(intervals):
            lines += self.work.step(self.of, self.paused, self.host.now_s)
            self.host.wait()
        return lines

    def on(self, name="a"):
        """The affinity of a domain's I/O threads."""
        (pcpus,) = set(self.host.pcpus[name].values())
        return pcpus

    def samples(self, gone=()):
        """Samples of I/O metrics by name and labels; ``gone`` instances ended since."""
        here = {d.reading.resource for d in self.work.report} - set(gone)
        exporter = Exporter(CollectorRegistry(), detail="vcpu")
        exporter.update(reports.cycle(*(reports.instance(resource=r) for r in here)))
        exporter.io = self.work.report
        found = {}
        for family in exporter.collect():
            for s in family.samples:
                labels = {k: v for k, v in s.labels.items() if k not in ("resource", "project")}
                found[(s.name, *labels.values())] = s.value
        return found


@pytest.fixture
def work():
    return Work()


def test_insensitive_io_goes_to_slow_cores_and_comes_back(work):
    """It moves after a while above 100 %, and back after a while below; the log says why."""
    work.host.add("b", SENSITIVE)

    lines = work.run(4)
    assert lines == ["name-a: I/O threads to pCPUs 0-1 (insensitive to core speed)"]
    assert (work.on("a"), work.on("b")) == (SLOW, HOME)

    work.run(4)
    work.host.use["a"] = (0.1, 0.1)
    assert work.run(8) == ["name-a: I/O threads to pCPUs 0-3 (sensitive to core speed)"]
    assert work.on("a") == HOME


def test_report_classifies_and_moves_nothing():
    """The default."""
    work = Work(work="report")

    assert work.run(5) == []

    assert (work.host.moved, work.on()) == ([], HOME)
    assert "its I/O work is insensitive" in because(work.work.report, "a")[0]


def test_off_and_a_single_core_type_cost_nothing():
    """Nothing is read."""
    for work in (Work(work="off"), Work(of=topology(slow=()))):
        work.run(5)
        assert (work.host.reads, work.work.report) == (0, None)


def test_paused_instance_is_not_moved(work):
    """It keeps its affinity and is still measured."""
    work.paused["a"] = "paused by an operator"
    work.run(5)
    assert work.on() == HOME
    assert work.samples()[("amp_instance_combined_usage_ratio", "name-a")] == pytest.approx(1.29)

    work.paused.clear()
    work.run()
    assert work.on() == SLOW


def test_an_affinity_that_something_else_has_set_is_left_alone(work):
    """As long as it is neither the home of the threads nor what the agent sets."""
    work.run(4)
    work.host.pcpus["a"] = {TID: frozenset({3})}
    work.run(3)
    assert (len(work.host.moved), work.on()) == (1, {3})
    assert any("Something else" in line for line in because(work.work.report, "a"))

    work.host.pcpus["a"] = {TID: HOME}
    work.run()
    assert work.on() == SLOW


def test_a_pcpu_that_was_offline_is_used_again(work):
    """What the agent set meanwhile, without that pCPU, is not foreign when it is back."""
    work.host.homes["a"][TID] = work.host.pcpus["a"][TID] = HOME - {1}
    work.run(5)
    assert work.on() == SLOW - {1}

    work.host.homes["a"][TID] = HOME
    work.run()
    assert work.on() == SLOW


def test_foreign_affinity_found_at_start_is_respected(work):
    """Neither its home nor one that the agent sets: it was set by hand."""
    work.host.pcpus["a"] = {TID: frozenset({1, 2})}
    work.run(6)
    assert work.host.moved == []


def test_threads_that_start_later_are_moved_too(work):
    """A vhost or thread-pool worker that QEMU starts."""
    work.run(5)
    work.host.homes["a"][7], work.host.pcpus["a"][7] = HOME, HOME
    assert work.run() == []
    assert work.host.pcpus["a"][7] == SLOW


def test_restarted_agent_adopts_what_it_finds_and_a_restarted_domain_starts_afresh(work):
    """Threads do not move home and back; a new process has no known usage."""
    work.run(5)
    work.start()
    work.run(5)
    assert len(work.host.moved) == 1

    work.host.lives["a"], work.host.pcpus["a"] = "second", {TID: HOME}
    work.run()
    assert work.on() == HOME


@pytest.mark.parametrize("mode", ["off", "report"])
def test_another_mode_moves_everything_home_once(tmp_path, mode):
    """Only what the agent had moved; affinities set by hand stay."""
    work = Work(marker=tmp_path / "io.moved")
    work.run(5)
    assert work.on() == SLOW

    work.settings["work"] = mode
    work.start()
    work.run(3)
    assert work.on() == HOME
    assert not (tmp_path / "io.moved").exists()

    work.host.pcpus["a"] = {TID: SLOW}  # by hand
    work.start()
    work.run(3)
    assert work.on() == SLOW


def test_failed_move_is_explained(work):
    """It is retried in the next interval."""
    work.host.failure = "an I/O thread cannot be moved: no"
    work.run(5)
    assert "An I/O thread cannot be moved: no." in because(work.work.report, "a")
    work.host.failure = None
    work.run()
    assert work.on() == SLOW


def test_move_that_costs_too_much_is_undone(work):
    """Threads return home, and the log says how much throughput was left."""
    work.run(3)
    work.work.step(work.of, {}, work.host.now_s)
    work.host.use["a"] = (1.0, 0.3)
    work.host.wait()

    assert work.run(4) == [
        "name-a: I/O threads to pCPUs 0-3 (it kept only 60% of its throughput on slow cores)"
    ]
    assert work.samples()[("amp_instance_io_effect_ratio", "name-a")] == pytest.approx(0.6)
    work.host.use["a"] = INSENSITIVE
    assert work.run(10) == []


def test_metrics_and_explain_show_usage_effect_and_estimate(work):
    """Everything an operator needs to assess the rule; series end with their instance."""
    work.run(8)
    found = work.samples()
    assert found[("amp_instance_combined_usage_ratio", "name-a")] == pytest.approx(1.29)
    assert found[("amp_instance_io_kept_estimate_ratio", "name-a")] == pytest.approx(1 / 1.79)
    assert found[("amp_instance_io_effect_ratio", "name-a")] == pytest.approx(1.0)
    assert "kept off fast cores" in because(work.work.report, "a")[1]
    assert (
        "Its Combined Usage is 129% (above 100 %: insensitive)" in because(work.work.report, "a")[0]
    )

    work.host.pcpus.clear()
    work.run()
    assert not [key for key in work.samples() if "name-a" in key]


def test_without_libvirt_it_waits(work):
    """State is kept; the control cycle reports the outage."""
    work.run(3)
    work.host.available = False
    assert work.run(3) == []
    work.host.available = True
    work.run(3)
    assert work.on() == SLOW
