"""The agent as a service: wiring, pace, signals. It alone knows the real Sensor and Actuator."""

import contextlib
import functools
import logging
import resource
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from oslo_config import cfg

from amp_nova.agent.cycle import Cycle, CycleReport
from amp_nova.agent.fast_loop import FastLoop
from amp_nova.agent.io_work import IoSettings, IoWork, because
from amp_nova.agent.loop import Loop, Settings
from amp_nova.agent.operator import control_socket, status
from amp_nova.agent.operator.locks import locked
from amp_nova.agent.operator.pause import Holds
from amp_nova.agent.publish.metrics import Exporter
from amp_nova.agent.publish.outbound import Outbound
from amp_nova.agent.state.speedup_history import Lessons
from amp_nova.agent.unheld import Unheld
from amp_nova.control import ips_limit, own_coefficients
from amp_nova.control.entitlement import Terms
from amp_nova.exceptions import (
    AmpError,
    CalibrationInvalid,
    ConfigInvalid,
    HypervisorUnavailable,
)
from amp_nova.flavor.extra_specs import examine, vcpus_named
from amp_nova.host.calibration.measure import SOURCE, made_s
from amp_nova.host.counters import perf
from amp_nova.host.counters.sources import AUTO, NONE, PERF, TCG, Counters
from amp_nova.host.io.node import IoHost
from amp_nova.host.libvirt.domain_xml import Fallback
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.machine import load_topology
from amp_nova.host.node import LibvirtHost
from amp_nova.host.sysfs.tree import online_mask
from amp_nova.model.allocation import Change
from amp_nova.model.observation import DomainReading
from amp_nova.model.topology import Topology
from amp_nova.plugins import load_policy
from amp_nova.policies.api import Policy
from amp_nova.profiling.io_overlap import Rule
from amp_nova.profiling.speedup import SPREAD_RATIO, MissCost

LOG = logging.getLogger(__name__)
EVENT_GAP_S = 0.02
"""Least time between two cycles that events start, so that a storm of them is one cycle."""


def fallbacks(lines: list[str]) -> list[Fallback]:
    """Bookings configured for domains that carry none; ``ConfigInvalid`` naming the line."""
    found = []
    for line in lines:
        pattern, *pairs = line.split() or [""]
        specs = dict(pair.partition("=")[::2] for pair in pairs)
        booking, errors = examine(specs, vcpus_named(specs))
        if not pairs:
            errors = ("it names no extra spec",)
        elif booking is not None and any(not key.startswith("amp:") for key in specs):
            errors = ("only amp:* keys may be given",)
        if errors:
            raise ConfigInvalid(
                f"[agent] booking = {line}: {errors[0]}; write PATTERN amp:KEY=VALUE..."
            )
        found.append(Fallback(pattern, specs))
    return found


def make_host(conf: cfg.ConfigOpts, wake: threading.Event | None = None) -> LibvirtHost:
    """This machine's Sensor and Actuator, as configured."""
    agent = conf.agent
    hypervisor = Hypervisor(
        agent.libvirt_uri,
        fallbacks(agent.booking),
        agent.libvirt_timeout_s,
        agent.resync_s,
        wake.set if wake else lambda: None,
    )
    return LibvirtHost(
        hypervisor,
        lambda: load_topology(conf),
        lambda: online_mask(conf.topology.root),
        Path(agent.libvirt_run_path),
        Holds(Path(agent.state_path)).current,
        counters=Counters(conf.counters.source, retry_s=conf.counters.retry_s),
    )


def make_io_host(conf: cfg.ConfigOpts, host: LibvirtHost) -> IoHost:
    """The I/O threads and interfaces of the same domains."""
    run_path, rate = Path(conf.agent.libvirt_run_path), conf.agent.io_line_rate_mbps
    return IoHost(host.hypervisor, run_path, line_rate_mbps=rate or None)


def make_io_work(conf: cfg.ConfigOpts, host: LibvirtHost, *, dry_run: bool) -> IoWork:
    """What moves them, as configured."""
    how = IoSettings(
        conf.agent.io_work,
        conf.agent.io_sensitive == "fast",
        repairs_max=conf.agent.drift_repairs_max,
        dry_run=dry_run,
    )
    if dry_run:  # one glance must do
        how = replace(how, interval_s=0.0, rule=Rule(confirm=1))
    return IoWork(make_io_host(conf, host), how, io_marker(conf))


def io_marker(conf: cfg.ConfigOpts) -> Path:
    """The file that says that I/O threads were moved and may have to be put back."""
    return Path(conf.agent.state_path) / "io.moved"


def calibrated_s(conf: cfg.ConfigOpts, topology: Topology) -> float | None:
    """When the calibration that the topology rests on was made, in seconds since the epoch."""
    if all(t.nominal_ips is None and t.coefficient_source != SOURCE for t in topology.core_types):
        return None
    try:
        return made_s(conf.topology.calibration_file)
    except CalibrationInvalid:  # it was taken away since
        return None


def expected_source(conf: cfg.ConfigOpts) -> str | None:
    """What will count instructions here, as long as there is no guest to tell."""
    root, source = Path(conf.topology.root), conf.counters.source
    if source == TCG:
        return TCG
    devices = root / "sys/bus/event_source/devices"
    there = any((devices / pmu.name).is_dir() for pmu in perf.pmus(root))
    usable = source in (AUTO, PERF) and perf.mediated(root) is None
    return PERF if usable and there else None


def settings(conf: cfg.ConfigOpts, *, dry_run: bool = False) -> Settings:
    """The loop's settings, as configured."""
    terms = Terms(
        conf.agent.reserve_ratio,
        one_pcpu=conf.agent.affinity == "pcpu",
        best_effort_yields=conf.agent.best_effort_yields,
        ips=ips_limit.Terms(conf.agent.ips_fallback),
    )
    cycles = conf.agent.miss_cycles
    return Settings(
        terms,
        own_coefficients.choice(conf.agent.coefficients, conf.agent.coefficients_of),
        None if cycles is None else MissCost(cycles, SPREAD_RATIO),
        cycle_s=conf.agent.cycle_s,
        policy_interval_s=conf.agent.policy_interval_s,
        policy_moves_max=conf.agent.policy_moves_max,
        drift_repairs_max=conf.agent.drift_repairs_max,
        dry_run=dry_run,
        ips_controller=conf.agent.ips_controller,
        sp_s=conf.agent.sp_s,
    )


def policy(conf: cfg.ConfigOpts) -> Policy:
    """The best-effort policy, as configured; ``AmpError`` when it or a parameter is not there."""
    given: dict[str, object] = {}
    for line in conf.agent.policy_parameter:
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or key.strip() in given:
            raise ConfigInvalid(
                f"[agent] policy_parameter = {line}: write KEY=VALUE, each key once"
            )
        given[key.strip()] = value.strip()
    return load_policy(conf.agent.policy, **given)


class Service:
    """Runs cycles: on a period, and at once when something happened to a domain."""

    def __init__(self, conf: cfg.ConfigOpts, *, dry_run: bool = False) -> None:
        self._conf = conf
        self._state_path = Path(conf.agent.state_path)
        self._wake = threading.Event()
        self._stop, self._dry_run = False, dry_run
        self._unavailable = self._blind = False
        _raise_descriptor_limit()
        self.host = make_host(conf, self._wake)
        self._held = Holds(self._state_path).current
        lock = functools.partial(locked, self._state_path, "cycle.lock", wait=False)
        fast = Unheld(self.host, self._held, lock)
        chosen = settings(conf, dry_run=dry_run)
        self._lessons = Lessons(self._state_path)
        recall = self._lessons.recall
        self.loop = Loop(self.host, self.host, chosen, policy(conf), fast=fast, recall=recall)
        self.io = make_io_work(conf, self.host, dry_run=dry_run)
        self.exporter = Exporter()
        self.outbound = Outbound(conf, self.host.hostname)
        self._counts_by = expected_source(conf)
        self._cycle: Cycle | None = None
        self._topology: Topology | None = None

    @property
    def report(self) -> CycleReport | None:
        """What the last cycle found and did, if there was one."""
        return None if self._cycle is None else self.loop.report()

    def once(self) -> CycleReport:
        """One cycle, and what came of it."""
        self._act()
        return self.loop.report()

    def _act(self) -> Cycle:
        """One cycle; nothing else may change limits meanwhile."""
        with locked(self._state_path, "cycle.lock", wait=True):
            self._cycle = cycle = self.loop.act()
            if not self._dry_run:
                self._lessons.keep(cycle.topology.core_types, self.loop.lessons)
        return cycle

    def look_at_io(self) -> list[str]:
        """I/O work, when its interval has passed; a line for each domain whose threads moved."""
        cycle, lines = self._cycle, []
        if cycle is not None and self.io.due(cycle.time_ns / 1e9):
            with locked(self._state_path, "cycle.lock", wait=True):
                lines = self.io.step(cycle.topology, self._held(), cycle.time_ns / 1e9)
        self.exporter.io = self.io.report
        return lines

    def glance_at_io(self, between_s: float = 1.0) -> list[str]:
        """What I/O work a dry run would move: usage takes two looks with time in between."""
        if self._conf.agent.io_work != "slow":
            return []
        self.look_at_io()
        time.sleep(between_s)
        self.once()
        return self.look_at_io()

    def run(self) -> None:
        """Run until a signal says stop. Limits stay in force: they hold without the agent."""
        with locked(self._state_path, "agent.lock", wait=False):
            server = control_socket.Control(self._state_path, self._answer)
            try:
                if (options := self._conf.exporter).enabled:
                    where = self.exporter.start_http(options.address, options.port)
                    LOG.info("metrics at http://%s:%d/metrics", *where)
                for number in (signal.SIGTERM, signal.SIGINT):
                    signal.signal(number, self._on_signal)
                self._cycles()
                self.loop.settle()
            finally:
                self.outbound.stop()
                server.close()

    def _on_signal(self, number: int, _frame: object) -> None:
        LOG.info("stopping on signal %d; limits stay in force", number)
        self._stop = True
        self._wake.set()

    def _cycles(self) -> None:
        due = ended = time.monotonic()
        while not self._stop:
            if self._pause(due):
                time.sleep(max(0.0, ended + EVENT_GAP_S - time.monotonic()))
                self._wake.clear()
            else:
                now = time.monotonic()
                self.exporter.lateness_s = now - due
                # Cycles that a long one swallowed are not made up for.
                due = max(due + self._conf.agent.cycle_s, now)
            if not self._stop:
                self._try_cycle()
            ended = time.monotonic()

    def _pause(self, until_s: float) -> bool:
        """Wait for the next cycle, the fast loop running meanwhile; whether an event came first."""
        fast, look_s = self.loop.fast, time.monotonic()
        while fast is not None and fast.governs and not self._stop:
            # Looks that a long cycle swallowed are not made up for.
            look_s = max(look_s + fast.tick_s, time.monotonic())
            if look_s >= until_s:
                break
            if self._wake.wait(max(0.0, look_s - time.monotonic())):
                return True
            self._try_look(fast)
        return self._wake.wait(max(0.0, until_s - time.monotonic()))

    def _try_look(self, fast: FastLoop) -> None:
        try:
            fast.tick()
            self._blind = False
        except Exception:  # the limits hold as they are
            if not self._blind:  # it looks many times a second
                LOG.exception("a look of the fast loop failed; trying again until one succeeds")
            self._blind = True

    def _try_cycle(self) -> None:
        try:
            cycle = self._act()
        except HypervisorUnavailable as exc:
            if not self._unavailable:
                LOG.error("%s; trying again until it answers", exc)
            self._unavailable = True
            self.exporter.hypervisor_up = False
            self.outbound.unwell()
            return
        except Exception:  # whatever it was, the next cycle starts from what the host says
            LOG.exception("a control cycle failed; going on with the next one")
            return
        self._unavailable = False
        self.exporter.hypervisor_up = self.host.hypervisor_up
        if cycle.topology is not self._topology:
            self._topology = cycle.topology
            for warning in cycle.topology.warnings:
                LOG.warning(warning)
            self.exporter.calibrated_s = calibrated_s(self._conf, cycle.topology)
        self.exporter.libvirt_calls = self.host.calls
        self._tell_counters()
        self.exporter.follow(cycle.stage_s, self.loop.report)
        self.outbound.tell(cycle, self.loop.report, self._counts_by, self.loop.policy)
        lines = self._try_io()
        if self.loop.changes or self.loop.precedence:
            report = self.loop.report()
            lines += describe(self.loop.changes, report)
            lines += describe_precedence(self.loop.precedence, report)
        for line in lines:
            LOG.info(line)

    def _tell_counters(self) -> None:
        """Export what counts vCPUs, and log what is new about it."""
        counting = self.host.counting()
        for source, about in counting.keys() - self.exporter.counters.keys():
            if about:
                LOG.warning("counters of vCPUs (%s): %s", source, about)
        self.exporter.counters = counting
        if counting:
            found = sorted({source for source, _ in counting} - {NONE})
            self._counts_by = "+".join(found) or None

    def _try_io(self) -> list[str]:
        try:
            return self.look_at_io()
        except Exception:  # bookings do not suffer from it
            LOG.exception("a look at I/O work failed; going on with the next one")
            return []

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        report = self.report
        if report is None:
            return {"error": "the agent has not finished a cycle yet: see its log"}
        if question.get("ask") == "explain":
            here = {
                d.domain.resource: (d.domain.name, d.domain.display_name) for d in report.domains
            }
            resource_id = resolve(str(question.get("instance")), here)
            answer = status.explain(report, resource_id)
            answer["because"] += because(self.io.report, resource_id)
            return {"explain": answer}
        return {"status": status.status(report)}


def describe(changes: tuple[Change, ...], report: CycleReport) -> list[str]:
    """One line per change: which vCPU of which domain gets what, and why."""
    found = {
        (d.domain.resource, v.reading.index): (d.domain.name, v)
        for d in report.domains
        for v in d.vcpus
    }
    lines = []
    for change in changes:
        name, vcpu = found[change.key]
        does = []
        for step in change.steps:
            if step.pcpus is not None:
                does.append(f"pCPUs {','.join(str(p) for p in sorted(step.pcpus))}")
            elif step.bandwidth is None:
                does.append("no quota")
            else:
                does.append(f"quota {step.bandwidth.quota_us}/{step.bandwidth.period_us} us")
        failed = f" FAILED: {vcpu.failure}" if vcpu.failure else ""
        lines.append(f"{name} vCPU {change.key[1]}: {', '.join(does)} ({change.why}){failed}")
    return lines


def describe_precedence(yielding: Mapping[str, bool], report: CycleReport) -> list[str]:
    """One line per instance that begins or ends to yield."""
    names = {d.domain.resource: d.domain.name for d in report.domains}
    does = {True: "yields to bookings", False: "yields no longer"}
    return [f"{names[resource]}: {does[yields]}" for resource, yields in yielding.items()]


def _raise_descriptor_limit() -> None:
    """Each vCPU takes four descriptors: use all that the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def release(conf: cfg.ConfigOpts, instances: list[str] | None) -> tuple[list[str], list[str]]:
    """Put back what flavors alone ask for, and keep the agent's hands off: released, leftovers.

    ``instances=None`` means every instance with an ``amp:*`` key, and those that a policy placed.
    Raises ``AmpError`` for one that is not here.
    """
    host, state_path = make_host(conf), Path(conf.agent.state_path)
    holds = Holds(state_path)
    with locked(state_path, "cycle.lock", wait=True):
        seen = host.observe()
        here = {r.domain.resource: r.domain for r in seen.domains}
        io_host = make_io_host(conf, host) if io_marker(conf).exists() else None
        moved = {} if io_host is None else io_host.moved(seen.topology)
        chosen = [r.domain.resource for r in seen.domains if r.domain.resource in moved or _ours(r)]
        if instances is not None:
            names = {r: (d.name, d.display_name) for r, d in here.items()}
            chosen = [resolve(instance, names) for instance in instances]
        left: list[str] = []
        for resource_id in chosen:
            holds.hold(resource_id, "released; 'amp-nova resume' takes it back")
            left += host.release(resource_id)
            if io_host is not None and resource_id in moved:
                failure = io_host.move(resource_id, moved[resource_id])
                left += [f"{here[resource_id].name}: {failure.message}"] if failure else []
        if instances is None:  # without bookings there is nothing to yield to
            yielding = {r.domain.resource: False for r in host.observe().domains if r.yields}
            left += [failure.message for failure in host.precede(yielding).values()]
    return [here[r].name for r in chosen], left


def _ours(reading: DomainReading) -> bool:
    """Whether something of an instance is ours to put back."""
    booked = any(k.startswith("amp:") for k in reading.domain.specs)
    return booked or any(v.pcpus < v.allowed for v in reading.vcpus)


def resolve(instance: str, here: dict[str, tuple[str, str]]) -> str:
    """The UUID of an instance named by UUID, libvirt or Nova name; ``AmpError`` if not here."""
    if instance in here:
        return instance
    for position in (0, 1):
        # Instances that are not Nova's have no name there: the empty one is nobody's.
        found = [uuid for uuid, names in here.items() if "" != names[position] == instance]
        if len(found) == 1:
            return found[0]
        if found:
            raise AmpError(f"several instances here are named '{instance}': give the UUID")
    raise AmpError(f"no instance '{instance}' on this host: 'amp-nova status' lists those that are")
