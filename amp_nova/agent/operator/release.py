# SPDX-License-Identifier: Apache-2.0
"""Restores what was in force before the agent, and keeps the agent from changing it again.

The agent recorded that before its first change, so neither the agent nor libvirt has to run. An
instance whose record is lost gets what its libvirt definition says.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from oslo_config import cfg

from amp_nova.agent.operator.instance_names import resolve
from amp_nova.exceptions import AmpError
from amp_nova.guard import locks, record
from amp_nova.guard.pauses import Pauses
from amp_nova.guard.restore import original, restore
from amp_nova.model import cpu_weight
from amp_nova.model.observation import DomainReading
from amp_nova.ports import IoPort

WHY = f"{record.RELEASED}; 'amp-nova resume' lets the agent manage it again"


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """Names of the released instances, a line for each change, a sentence for each leftover."""

    names: tuple[str, ...]
    changes: tuple[str, ...]
    left: tuple[str, ...]


class _Writer(Protocol):
    """Undoes changes without a record, and changes in libvirt's definition."""

    @property
    def in_definition(self) -> bool: ...

    def undo(self, reading: DomainReading, *, dry_run: bool) -> tuple[list[str], list[str]]: ...


@dataclass(slots=True)
class _ReleaseHost:
    """This host: its records and, if libvirt answers, its domains.

    ``absent``: why the domains are missing; ``moved``: for each instance whose I/O threads the
    agent moved, their homes by thread ID.
    """

    recorded: dict[str, record.RecordedDomain] = field(default_factory=dict)
    here: dict[str, DomainReading] = field(default_factory=dict)
    writer: _Writer | None = None
    io_host: IoPort | None = None
    moved: Mapping[str, Mapping[int, frozenset[int]]] = field(default_factory=dict)
    absent: str = ""

    def names(self) -> dict[str, tuple[str, str]]:
        """Libvirt name and Nova name by UUID."""
        present = {u: (r.domain.name, r.domain.display_name) for u, r in self.here.items()}
        return {u: (d.name, d.display_name) for u, d in self.recorded.items()} | present


def release(
    conf: cfg.ConfigOpts, instances: list[str] | None, *, dry_run: bool = False
) -> ReleaseResult:
    """Restore instances; ``dry_run`` only lists what would be changed.

    ``instances=None`` means every instance that is recorded, has an ``amp:*`` key, or was placed by
    a policy. Raises ``AmpError`` for an instance that is not on this host.
    """
    state_path = Path(conf.agent.state_path)
    names: list[str] = []
    changes: list[str] = []
    with locks.locked(state_path, locks.CYCLE, wait_s=locks.WAIT_S):
        host, left = _observe(conf)
        domain_names = host.names()
        for uuid in _chosen(instances, host):
            made, failed, managed = _restore(host, uuid, dry_run=True)
            if managed or instances is not None:
                names.append(domain_names[uuid][0])
                # Pause first: libvirt sends a running agent an event for every change.
                left += [] if dry_run else _exclude(state_path, uuid, host)
            if not dry_run:
                made, failed, _ = _restore(host, uuid, dry_run=False)
            changes += made
            left += failed
            if not (dry_run or failed) and uuid in host.recorded:  # else it was not used
                # An agent that is running keeps its records up to date itself.
                with contextlib.suppress(AmpError), locks.locked(state_path, locks.AGENT):
                    record.forget(state_path / record.FOLDER, uuid)
    return ReleaseResult(tuple(names), tuple(changes), tuple(left))


def undo(
    state_path: Path,
    domains: Iterable[DomainReading],
    writer: _Writer,
    recorded: Mapping[str, record.RecordedDomain],
    forget: Callable[[str], None],
) -> tuple[list[str], list[str]]:
    """Restore these recorded instances without a pause, as an agent that only observes does.

    ``forget`` is called for each that is restored completely. Returns changes and leftovers.
    """
    changes, left = list[str](), list[str]()
    with locks.locked(state_path, locks.CYCLE, wait_s=1.0):
        host = _ReleaseHost(dict(recorded), {r.domain.resource: r for r in domains}, writer)
        for uuid in host.recorded:
            made, failed, _ = _restore(host, uuid, dry_run=False)
            changes += made
            left += failed
            if not failed:
                forget(uuid)
    return changes, left


def _observe(conf: cfg.ConfigOpts) -> tuple[_ReleaseHost, list[str]]:
    """This host, and a sentence for each part of it that cannot be read."""
    host, left, state_path = _ReleaseHost(), [], Path(conf.agent.state_path)
    for resource, domain in record.load_all(state_path / record.FOLDER):
        if isinstance(domain, Exception):
            left.append(f"{resource}: its record cannot be used: {domain}")
        elif record.alive(domain):
            host.recorded[resource] = domain
    try:
        from amp_nova.agent import wiring

        sensor = wiring.make_sensor(conf)
        observation = sensor.observe()
    except ImportError:
        host.absent = "libvirt's Python binding is missing: install amp-nova[agent]"
    except AmpError as exc:
        host.absent = exc.advised
    else:
        host.here = {r.domain.resource: r for r in observation.domains}
        host.writer = wiring.make_writer(conf, sensor)
        if wiring.io_marker(conf).exists():
            io_host = wiring.make_io_host(conf, sensor)
            host.io_host, host.moved = io_host, io_host.moved(observation.topology)
    if host.absent and (state_path / "io.moved").exists():
        left.append(f"I/O threads that were moved stay where they are: {host.absent}")
    return host, left


def _chosen(instances: list[str] | None, host: _ReleaseHost) -> list[str]:
    if instances is not None:
        try:
            return list(dict.fromkeys(resolve(i, host.names()) for i in instances))
        except AmpError as exc:
            raise AmpError(f"{exc} ({host.absent})" if host.absent else str(exc)) from exc
    changed = (
        uuid
        for uuid, r in host.here.items()
        if r.cpu_weight in cpu_weight.ours(r.domain.vcpus) or uuid in host.moved or _changed(r)
    )
    chosen = list(dict.fromkeys((*host.recorded, *changed)))
    if host.absent and not chosen:
        raise AmpError(f"nothing is recorded here, and {host.absent}")
    return chosen


def _changed(reading: DomainReading) -> bool:
    """Whether amp-nova may have set a limit or affinity of an instance without a record."""
    booked = any(k.startswith("amp:") for k in reading.domain.specs)
    # A limit that the definition does not have may be of an [agent] booking removed since.
    limited = any(v.bandwidth for v in reading.vcpus) and not reading.domain.limited_elsewhere
    return booked or limited or any(v.pcpus < v.allowed for v in reading.vcpus)


def _restore(host: _ReleaseHost, uuid: str, *, dry_run: bool) -> tuple[list[str], list[str], bool]:
    """Restore an instance: its changes, its leftovers, and whether the agent managed it.

    A CPU weight alone does not count as managed.
    """
    reading, domain = host.here.get(uuid), host.recorded.get(uuid)
    managed = uuid in host.moved
    through_libvirt = reading is not None and host.writer is not None and host.writer.in_definition
    if domain is not None and not through_libvirt:
        result = restore(domain, original, dry_run=dry_run)
        changes, left = result.changes, result.left
        managed |= result.vcpus or any(v.safe.limits for v in domain.vcpus.values())
    elif reading is not None and host.writer is not None:
        changes, left = host.writer.undo(reading, dry_run=dry_run)
        managed |= _changed(reading) or domain is not None
    if uuid in host.moved and host.io_host is not None:
        name = host.names()[uuid][0]
        changes.append(f"{name}: I/O threads")
        failure = None if dry_run else host.io_host.move(uuid, host.moved[uuid])
        left += [f"{name}: {failure}"] if failure else []
    return changes, left, managed


def _exclude(state_path: Path, uuid: str, host: _ReleaseHost) -> Collection[str]:
    """Pause an instance until it is resumed; on a full disk, its record is deleted for that."""
    pauses = Pauses(state_path)
    try:
        pauses.pause(uuid, WHY)
    except AmpError:
        if uuid in host.recorded:
            record.forget(state_path / record.FOLDER, uuid)
        try:
            pauses.pause(uuid, WHY)
        except AmpError as exc:
            return [f"{host.names()[uuid][0]}: a running agent will manage it again: {exc}"]
    return []
