# SPDX-License-Identifier: Apache-2.0
"""Builds the agent's parts from the configuration; only this module connects the loop to a host."""

import contextlib
import functools
import resource
from collections.abc import Callable
from pathlib import Path

from oslo_config import cfg

from amp_nova.agent.io_work import IO_CYCLES, IoWork
from amp_nova.agent.publish.host_info import NOT_CALIBRATED, CalibrationStatus
from amp_nova.agent.threads import Wakeup
from amp_nova.exceptions import CalibrationInvalid, ConfigInvalid, CountersNever
from amp_nova.flavor.extra_specs import examine, vcpus_named
from amp_nova.guard import locks
from amp_nova.guard.pauses import Pauses
from amp_nova.host.calibration import file
from amp_nova.host.calibration.provenance import SOURCE, own
from amp_nova.host.counters import perf
from amp_nova.host.counters.sources import PERF, TCG, Counters
from amp_nova.host.io import IoHost
from amp_nova.host.libvirt.backend import LibvirtBackend
from amp_nova.host.libvirt.domain_xml import Fallback
from amp_nova.host.libvirt.hypervisor import Hypervisor
from amp_nova.host.machine import OnlineTopology, load_topology
from amp_nova.host.records import Records
from amp_nova.host.sensor import HostPaths, LibvirtSensor
from amp_nova.host.sysfs import online_mask
from amp_nova.host.vcpu_threads import RUN_PATH
from amp_nova.host.writer import CgroupBackend, WriteConditions, Writer
from amp_nova.model.topology import Topology
from amp_nova.plugins import emulated_counter, load_policy
from amp_nova.policies.api import Policy


def fallbacks(lines: list[str]) -> list[Fallback]:
    """Bookings configured for domains that carry none.

    Raises ``ConfigInvalid``, which quotes the line, if one is not valid.
    """
    entries = []
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
        entries.append(Fallback(pattern, specs))
    return entries


def make_sensor(conf: cfg.ConfigOpts, wake: Wakeup | None = None) -> LibvirtSensor:
    """The sensor of this machine, as configured; ``wake`` is set at life-cycle events."""
    agent = conf.agent
    hypervisor = Hypervisor(
        agent.libvirt_uri,
        fallbacks(agent.booking),
        wake=wake.set if wake else lambda: None,
        writable=agent.writer == "libvirt",
    )
    online = OnlineTopology(lambda: load_topology(conf), lambda: online_mask(conf.topology.root))
    return LibvirtSensor(
        hypervisor,
        online,
        HostPaths(Path(conf.topology.root, RUN_PATH)),
        Counters(),
        Pauses(Path(agent.state_path)).current,
    )


def make_writer(
    conf: cfg.ConfigOpts, sensor: LibvirtSensor, lost: Callable[[], str] = str
) -> Writer:
    """The writer for the domains of ``sensor``; it respects pauses, the cycle lock and a lease."""
    state_path = Path(conf.agent.state_path)
    lock = functools.partial(locks.locked, state_path, locks.CYCLE)
    try:
        paused, records = Pauses(state_path).current, Records(state_path, sensor)
    except OSError as exc:
        raise ConfigInvalid(
            f"[agent] state_path {state_path} cannot be read ({exc.strerror}): "
            "run this as root, or as the agent's user"
        ) from exc
    conditions = WriteConditions(paused, lambda wait_s: lock(wait_s=wait_s), records, lost)
    by_libvirt = conf.agent.writer == "libvirt"
    backend = LibvirtBackend(sensor.hypervisor) if by_libvirt else CgroupBackend()
    return Writer(sensor, conditions, backend)


def make_io_host(conf: cfg.ConfigOpts, sensor: LibvirtSensor) -> IoHost:
    """Access to the I/O threads and interfaces of the domains of ``sensor``."""
    run_path, rate = Path(conf.topology.root, RUN_PATH), conf.agent.io_line_rate_mbps
    return IoHost(sensor.hypervisor, run_path, line_rate_mbps=rate or None)


def make_io_work(conf: cfg.ConfigOpts, sensor: LibvirtSensor, *, observe: bool = False) -> IoWork:
    """The part that moves I/O threads, with ``observe`` only home.

    Raises ``ConfigInvalid`` if the writer cannot do that.
    """
    agent = conf.agent
    if agent.io_work == "slow" and agent.writer == "libvirt":
        raise ConfigInvalid(
            "[agent] io_work = slow: I/O threads are not moved through libvirt; "
            "set io_work = report, or writer = cgroup"
        )
    work = "report" if observe and agent.io_work == "slow" else agent.io_work
    # While nothing is moved, a longer interval is enough.
    interval_s = IO_CYCLES * agent.cycle_s * (1 if work == "slow" else 4)
    return IoWork(make_io_host(conf, sensor), work, interval_s, io_marker(conf))


def io_marker(conf: cfg.ConfigOpts) -> Path:
    """The file that exists while I/O threads may have to be moved back."""
    return Path(conf.agent.state_path) / "io.moved"


def calibrated(conf: cfg.ConfigOpts, topology: Topology) -> CalibrationStatus:
    """When the calibration in use was made, and the half-width of each coefficient's interval.

    ``NOT_CALIBRATED`` if no calibration is in use.
    """
    if all(t.nominal_ips is None and t.coefficient_source != SOURCE for t in topology.core_types):
        return NOT_CALIBRATED
    try:
        calibration = own(file.read(conf.topology.calibration_file), conf.topology.root)
    except CalibrationInvalid:  # removed since the topology was read
        calibration = None
    if calibration is None:
        return NOT_CALIBRATED
    used = {t.name for t in topology.core_types if t.coefficient_source == SOURCE}
    intervals = {t.name: t.coefficient for t in calibration.core_types if t.name in used}
    errors = {name: (i.high - i.low) / 2.0 for name, i in intervals.items()}
    return CalibrationStatus(file.date(calibration.provenance).timestamp(), errors)


def expected_source(conf: cfg.ConfigOpts) -> str | None:
    """The source that will count instructions, judged without a guest.

    ``None`` if instructions cannot be counted on this host.
    """
    root = Path(conf.topology.root)
    devices = root / "sys/bus/event_source/devices"
    there = any((devices / pmu.name).is_dir() for pmu in perf.pmus(root))
    if there and perf.mediated(root) is None:
        return PERF
    if (root / "sys/devices/virtual/misc/kvm/dev").exists():  # guests are not emulated
        return None
    try:
        emulated_counter()
    except CountersNever:
        return None
    return TCG


def policy(conf: cfg.ConfigOpts) -> Policy:
    """The best-effort policy, as configured.

    Raises ``ConfigInvalid`` if it, or one of its parameters, is not valid.
    """
    parameters: dict[str, object] = {}
    for line in conf.agent.policy_parameter:
        key, equals, value = line.partition("=")
        if not equals or not key.strip() or key.strip() in parameters:
            raise ConfigInvalid(
                f"[agent] policy_parameter = {line}: write KEY=VALUE, each key once"
            )
        parameters[key.strip()] = value.strip()
    return load_policy(conf.agent.policy, **parameters)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of file descriptors to the hard limit: each vCPU takes four."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
