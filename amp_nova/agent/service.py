# SPDX-License-Identifier: Apache-2.0
"""The agent as a service: when cycles run, how signals end it, and where cycles are published."""

import contextlib
import functools
import gc
import logging
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from oslo_config import cfg

from amp_nova.agent import settings as settings_
from amp_nova.agent import wiring
from amp_nova.agent.cycle import Cycle
from amp_nova.agent.guarding import Guarding
from amp_nova.agent.io_work import because
from amp_nova.agent.loop import Loop
from amp_nova.agent.operator import control_socket, release, status
from amp_nova.agent.operator.instance_names import resolve
from amp_nova.agent.publish.publishers import Publishers
from amp_nova.agent.threads import Wakeup
from amp_nova.exceptions import AmpError, ConfigInvalid, HypervisorUnavailable, Locked
from amp_nova.guard import locks
from amp_nova.guard.pauses import Pauses
from amp_nova.model.observation import Observation, VcpuKey, VcpuSample
from amp_nova.private_files import check_trusted

LOG = logging.getLogger(__name__)
EVENT_GAP_S = 0.02
"""Shortest time between cycles that events start, so that a burst of events starts only one."""
COLLECT_EVERY = 10_000
"""Objects between two runs of the garbage collector; what cycles make has no reference cycles."""
LIBVIRT_SHARE = 0.25
"""Longest wait for all calls to libvirt in a cycle, as a part of the cycle."""
NO_LEASE = "this process has taken no lease"
"""Why a service that is not in control writes nothing."""


class Service:
    """Runs cycles: periodically, and at once after a life-cycle event of a domain."""

    def __init__(self, conf: cfg.ConfigOpts, *, dry_run: bool = False) -> None:
        self._conf = conf
        self._wake = Wakeup()
        self._systemd = Systemd()
        self._failing: set[str] = set()
        """What failed in its last attempt, so that repeated failures are logged only once."""
        wiring.raise_descriptor_limit()
        self.sensor = wiring.make_sensor(conf, self._wake)
        settings = settings_.read(conf, dry_run=dry_run)
        self._guarding: Guarding | None = None
        self._pauses = Pauses(Path(conf.agent.state_path))
        self._writer = wiring.make_writer(conf, self.sensor, self._lost)
        self.loop = Loop(self, self._writer, settings, wiring.policy(conf))
        self._observing = conf.agent.mode == "observe"
        self.io = wiring.make_io_work(conf, self.sensor, observe=self._observing)
        self.publishers = Publishers(
            conf,
            self.sensor.hypervisor.connection.hostname,
            functools.partial(wiring.calibrated, conf),
            wiring.expected_source(conf),
        )
        self.last: Cycle | None = None
        """The record of the last cycle."""
        self._ticked_s = 0.0
        """When counted vCPUs were last sampled."""

    def observe(self) -> Observation:
        """Read the host for the loop; where a vCPU ran last matters if nothing keeps it there."""
        observation = self.sensor.observe()
        return self.sensor.located(observation) if self._observing else observation

    def sample(self, keys: Collection[VcpuKey]) -> Mapping[VcpuKey, VcpuSample]:
        """Read CPU time and instructions of these vCPUs."""
        return self.sensor.sample(keys)

    @contextlib.contextmanager
    def in_control(self, *, quiet: bool = False) -> Iterator[Guarding]:
        """Be this host's only agent, which has a lease; raises ``Locked`` if there is another.

        ``quiet``: a guard that is started writes nothing to standard error.
        """
        agent, state_path = self._conf.agent, Path(self._conf.agent.state_path)
        with locks.locked(state_path, locks.AGENT):
            check_trusted_path(state_path)
            # A lease is at least two cycles long.
            length_s = max(agent.lease_s, 2 * agent.cycle_s)
            self._guarding = Guarding(state_path, length_s, quiet=quiet)
            try:
                yield self._guarding
            finally:
                self._guarding.close()
                self._guarding = None

    def _lost(self) -> str:
        return NO_LEASE if self._guarding is None else self._guarding.lost()

    def once(self) -> Cycle:
        """Run one cycle and return its record; it writes nothing unless ``in_control``."""
        if self._guarding is not None and self._guarding.before():
            self.sensor.reread()
            self.loop.adopt()
        self.last = cycle = self.loop.cycle()
        return cycle

    def poll_io(self) -> list[str]:
        """Handle I/O work if it is due; returns a line for each domain whose threads moved."""
        cycle, lines, state_path = self.last, [], Path(self._conf.agent.state_path)
        if cycle is not None and self.io.due(cycle.time_ns / 1e9):
            with locks.locked(state_path, locks.CYCLE, wait_s=1.0):
                if self._lost():
                    return []
                # Read under the lock: an instance may have been paused since it was observed.
                paused = self._pauses.current()
                lines = self.io.step(cycle.topology, paused, cycle.time_ns / 1e9)
        return lines

    def run(self) -> None:
        """Run until a signal stops it; limits stay in force and are right without the agent."""
        with self.in_control() as guarding:
            server = control_socket.Control(Path(self._conf.agent.state_path), self._answer)
            try:
                # A libvirt call that does not return in time is taken up by the next cycle.
                connection = self.sensor.hypervisor.connection
                connection.cycle_wait_s = LIBVIRT_SHARE * self._conf.agent.cycle_s
                self.publishers.serve()
                with self._wake.signals():
                    gc.freeze()  # what has been imported stays: do not examine it again and again
                    gc.set_threshold(COLLECT_EVERY)
                    self._cycles(guarding)
                    if self._wake.stopping:
                        LOG.info("stopping on signal %d; limits stay in force", self._wake.stopping)
                    self._systemd.stopping()
                    self.loop.finish()
            finally:
                self.publishers.stop()
                server.close()

    def _cycles(self, guarding: Guarding) -> None:
        due = ended = time.monotonic()
        while not self._wake.stopping:
            late_s = None
            if self._pause(due):
                time.sleep(max(0.0, ended + EVENT_GAP_S - time.monotonic()))
                self._wake.clear()
            else:
                now = time.monotonic()
                late_s = now - due
                # Cycles that a long one delayed are skipped, not caught up on.
                due = max(due + self._conf.agent.cycle_s, now)
            if self._wake.reload():
                self._reload()
            if not self._wake.stopping:
                completed = self._try_cycle(late_s)
                self.publishers.exporter.agent.lease = guarding.after(self.last)
                self._report_health(completed=completed)
                if self._systemd.present and self.sensor.hypervisor.out_of_sight:
                    LOG.warning("libvirt made a new socket, which takes a restart to be seen")
                    return
            ended = time.monotonic()

    def _reload(self) -> None:
        """Read the options again that can be changed without a restart (oslo.config's mutable)."""
        try:
            self._conf.mutate_config_files()
            self.sensor.hypervisor.use(wiring.fallbacks(self._conf.agent.booking))
        except (cfg.Error, AmpError, OSError) as exc:
            LOG.error("the configuration cannot be read again: %s; what it was still counts", exc)

    def _pause(self, until_s: float) -> bool:
        """Sample counted vCPUs until the next cycle is due; returns whether an event came first."""
        failure = "instructions could not be measured between cycles; retrying"
        while (tick_s := self.loop.tick_s) is not None and not self._wake.stopping:
            # Ticks that a long cycle delayed are skipped, not caught up on.
            due_s = max(self._ticked_s + tick_s, time.monotonic())
            if due_s >= until_s:
                break
            if self._wake.wait(max(0.0, due_s - time.monotonic())):
                return True
            self._ticked_s = due_s
            with self._tolerated("tick", failure):  # limits stay as they are
                self.loop.tick()
        return self._wake.wait(max(0.0, until_s - time.monotonic()))

    @contextlib.contextmanager
    def _tolerated(self, part: str, failure: str) -> Iterator[None]:
        """Log an exception in the block as ``failure``, once until the block succeeds again."""
        try:
            yield
            self._failing.discard(part)
        except Exception as exc:  # a defect of one part must not end the cycles
            if part not in self._failing:
                # An error of our own is a sentence that says all; of another, the stack is needed.
                LOG.error("%s: %s", failure, exc, exc_info=not isinstance(exc, AmpError))
            self._failing.add(part)

    def _report_health(self, *, completed: bool) -> None:
        """Feed systemd's watchdog if a cycle was completed and the helper threads are well."""
        well = self.publishers.supervise()
        text = "waiting for libvirt"
        if self.last is not None and "hypervisor" not in self._failing:
            text = f"{len(self.last.observation.domains)} instances"
            text += ", bookings only observed" if self._observing else ""
        self._systemd.report(text, alive=completed and well)

    def _try_cycle(self, late_s: float | None) -> bool:
        """Run a cycle and publish it; ``False`` if it failed, unless libvirt is unavailable."""
        try:
            cycle = self.once()
        except HypervisorUnavailable as exc:
            if "hypervisor" not in self._failing:
                LOG.error("%s; retrying", exc)
            self._failing.add("hypervisor")
            self.publishers.unavailable()
            return True
        except AmpError as exc:
            if "cycle" not in self._failing:
                LOG.error("%s; no changes are made until a cycle succeeds", exc)
            self._failing.add("cycle")
            return False
        except Exception:  # the last resort: without cycles the watchdog acts
            LOG.exception("a control cycle failed; continuing with the next cycle")
            return False
        self._failing -= {"hypervisor", "cycle"}
        with self._tolerated("release", "bookings are not released yet; retrying in every cycle"):
            if self._observing:
                self._release(cycle)
        lines: list[str] = []
        failure = "I/O work could not be examined; retrying in every cycle"
        # Bookings do not depend on I/O work. A lock that is taken is reported by the cycle.
        with self._tolerated("io", failure), contextlib.suppress(Locked):
            lines = self.poll_io()
        failure = "a cycle could not be published; retrying after each cycle"
        with self._tolerated("publish", failure):  # enforcement does not depend on it
            agent, hypervisor = self.publishers.exporter.agent, self.sensor.hypervisor
            agent.hypervisor_up, agent.libvirt_calls = (
                hypervisor.available,
                hypervisor.connection.calls,
            )
            if late_s is not None:
                agent.lateness_s = late_s
            self.publishers.publish(cycle, self.sensor.counting(), self.io.report)
        changes = [] if cycle.outcome.observing else status.describe(cycle)
        for line in (*changes, *lines):
            LOG.info(line)
        return True

    def _release(self, cycle: Cycle) -> None:
        """Restore what an agent with ``mode = enforce`` has changed before this one."""
        records, paused = self._writer.records, cycle.observation.paused
        recorded = {u: d for u, d in records.domains.items() if u not in paused}
        if not recorded:
            return
        path, domains = Path(self._conf.agent.state_path), cycle.observation.domains
        made, left = release.undo(path, domains, self._writer, recorded, records.forget)
        self.sensor.reread()
        for line in made:
            LOG.info("released: %s", line)
        if left:
            raise AmpError("; ".join(left))

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        cycle = self.last
        if cycle is None:
            return {"error": "the agent has not completed a cycle yet: see its log"}
        if question.get("command") == "explain":
            here = {
                d.domain.resource: (d.domain.name, d.domain.display_name)
                for d in cycle.observation.domains
            }
            resource = resolve(str(question.get("instance")), here)
            answer = status.explain(cycle, resource)
            answer["because"] += because(self.io.report, resource)
            return {"explain": answer}
        drift = cycle.profiles.drift(cycle.time_ns)
        return {
            "status": status.status(cycle),
            "policy": cycle.policy,
            "drift": drift,
            "warnings": [w.sentence for w in self.publishers.exporter.agent.warnings],
        }


def check_trusted_path(state_path: Path) -> None:
    """Raise ``ConfigInvalid`` if another user can change what the agent keeps there."""
    try:
        check_trusted(state_path)
    except (OSError, ValueError) as exc:
        raise ConfigInvalid(f"[agent] state_path: {exc}") from exc


class Systemd:
    """Reports the agent's state to systemd (sd_notify(3)); does nothing without ``Type=notify``."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.present = bool(address)
        """Whether systemd started this process, and does so again."""
        self._ready = False

    def report(self, status: str, *, alive: bool) -> None:
        """Report the status and that the agent has started; feed the watchdog if ``alive``."""
        lines = [f"STATUS={' '.join(status.split())}"]
        lines += [] if self._ready else ["READY=1"]
        lines += ["WATCHDOG=1"] if alive else []
        self._ready = True
        self._send("\n".join(lines))

    def stopping(self) -> None:
        """Report that the agent ends on purpose."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as conn:
                conn.setblocking(False)  # a systemd that hangs must not hold up a cycle
                conn.sendto(text.encode(), self._address)
        except OSError as exc:
            LOG.debug("systemd could not be notified of '%s': %s", text, exc)
