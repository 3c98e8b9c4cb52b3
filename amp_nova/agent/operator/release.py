"""Restores what flavors alone ask for, and keeps the agent from changing it again."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from amp_nova.agent import wiring
from amp_nova.agent.operator import locks
from amp_nova.agent.operator.instances import resolve
from amp_nova.agent.operator.pause import Pauses
from amp_nova.model.observation import DomainReading

WHY = "released; 'amp-nova resume' lets the agent manage it again"


@dataclass(frozen=True, slots=True)
class Released:
    """Names of the released instances, a line for each change, a sentence for each leftover."""

    names: tuple[str, ...]
    changes: tuple[str, ...]
    left: tuple[str, ...]


def release(
    conf: cfg.ConfigOpts, instances: list[str] | None, *, dry_run: bool = False
) -> Released:
    """Restore instances; ``dry_run`` only lists what would be changed.

    ``instances=None`` means every instance with an ``amp:*`` key, and those that a policy placed.
    Raises ``AmpError`` for an instance that is not on this host.
    """
    sensor, state_path = wiring.make_sensor(conf), Path(conf.agent.state_path)
    writer, pauses = wiring.make_writer(conf, sensor), Pauses(state_path)
    changes: list[str] = []
    left: list[str] = []
    with locks.locked(state_path, locks.CYCLE, wait=True):
        seen = sensor.observe()
        here = {r.domain.resource: r for r in seen.domains}
        io_host = wiring.make_io_host(conf, sensor) if wiring.io_marker(conf).exists() else None
        moved = {} if io_host is None else io_host.moved(seen.topology)
        chosen = _chosen(instances, here, set(moved))
        # Without bookings there is nothing to defer to: best effort leaves the idle class.
        idle = [u for u, r in here.items() if instances is None and r.idle and u not in chosen]
        for uuid in [*chosen, *idle]:
            changes += writer.undo_lines(here[uuid])
            changes += [f"{here[uuid].domain.name}: I/O threads"] if uuid in moved else []
            if dry_run:
                continue
            if uuid in chosen:
                pauses.pause(uuid, WHY)
            left += writer.release(here[uuid])
            if io_host is not None and uuid in moved:
                failure = io_host.move(uuid, moved[uuid])
                left += [f"{here[uuid].domain.name}: {failure.message}"] if failure else []
    return Released(tuple(here[u].domain.name for u in chosen), tuple(changes), tuple(left))


def _chosen(
    instances: list[str] | None, here: Mapping[str, DomainReading], moved: set[str]
) -> list[str]:
    if instances is None:
        return [uuid for uuid, r in here.items() if uuid in moved or _changed(r)]
    names = {u: (r.domain.name, r.domain.display_name) for u, r in here.items()}
    return list(dict.fromkeys(resolve(instance, names) for instance in instances))


def _changed(reading: DomainReading) -> bool:
    """Whether a limit or affinity of an instance is amp-nova's to restore."""
    booked = any(k.startswith("amp:") for k in reading.domain.specs)
    return booked or any(v.pcpus < v.allowed for v in reading.vcpus)
