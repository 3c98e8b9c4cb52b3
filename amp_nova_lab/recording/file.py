# SPDX-License-Identifier: Apache-2.0
"""A recording as the text of a scenario file, with what was recorded beside it."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from amp_nova.accounting import slowdown as slowdowns
from amp_nova.accounting.slowdown import Recent
from amp_nova.model import cpulist
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType, Topology
from amp_nova.profiling.speedup import SpeedupEstimate, hinted_speedup
from amp_nova_lab.counters import reference_ips
from amp_nova_lab.recording import behaviour, machine
from amp_nova_lab.recording.behaviour import ASSUMED, DIGITS, FLAVOR, Gain
from amp_nova_lab.recording.recorder import RecordedInstance, Recording, VcpuRecording, better
from amp_nova_lab.report import Delivered
from amp_nova_lab.scenarios.document import SIZE_MAX_BYTES

PHASES_MAX = (24, 12, 6, 3, 1)
"""Most phases of a vCPU: the first number that makes the file small enough."""
OTHER_RATIO = 0.05
"""Processes other than vCPUs are worth a note if they use more than this part of the pCPUs."""
UNSEEN_RATIO = 0.02
"""No progress is recorded for an instance with more of its CPU time on unknown core types."""
_NAME = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,255}")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a scenario has beside the instances.

    ``agent``: options of ``[agent]`` that are not the defaults; ``published``: the speedups that
    the agent knows; ``ran``: whether an agent ran.
    """

    name: str
    policy: str = "none"
    agent: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[VcpuKey, SpeedupEstimate] = field(default_factory=dict)
    ran: bool = True
    busy_cores: float | None = None
    """How many pCPUs were busy on average, with any work; ``None``: unknown."""


def text(recording: Recording, around: Surroundings) -> str:
    """The scenario file, with as many phases as its greatest size allows."""
    for phases_max in PHASES_MAX:
        content = _text(recording, around, phases_max)
        if len(content.encode()) <= SIZE_MAX_BYTES:
            break
    return content


def _text(recording: Recording, around: Surroundings, phases_max: int) -> str:
    notes = _notes(recording, around)
    host = machine.host(recording.topology, notes)
    made = _Instances(recording.topology, around, phases_max, notes)
    vms, recorded = [], {}
    names = _names(recording.instances.values())
    for resource, instance in recording.instances.items():
        gains = made.gains(resource, instance)
        vms.append(made.vm(names[resource], instance, gains))
        recorded[names[resource]] = made.recorded(instance, gains, recording.lasted_s)
    document = {
        "name": around.name,
        "duration_s": round(recording.lasted_s, 3),
        "policy": around.policy,
        "host": host,
        "vms": vms,
        "recorded": {
            "lasted_s": round(recording.lasted_s, 3),
            "other_cores": _rounded(_other_cores(recording, around)),
            "vms": recorded,
        },
    }
    if around.agent:
        document["agent"] = dict(around.agent)
    lines = [f"# {line}" for line in _HEAD]
    lines += [f"#  * {note}" for note in dict.fromkeys(notes)]
    body = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=110,
    )
    return "\n".join(lines) + "\n" + body


_HEAD = (
    "Written by amp-nova record, for amp-nova simulate, compare and whatif.",
    "'recorded' is what was delivered; the simulator does not read it, whatif compares with it.",
    "What the recording does not know, and what stands in for it:",
    " * A vCPU is assumed to want a CPU for the same share of time, however fast that is.",
)


class _Dumper(yaml.SafeDumper):
    """Writes repeated values in full, as scenarios must not have aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _notes(recording: Recording, around: Surroundings) -> list[str]:
    notes = []
    if not around.ran:
        notes.append(
            "No agent ran: bookings were not enforced, and the simulator enforces them. Linux "
            "placed the vCPUs, as policy none does."
        )
    other = _other_cores(recording, around)
    if other is not None and other > OTHER_RATIO * len(recording.topology.pcpus):
        notes.append(
            f"Processes other than vCPUs kept {other:.2f} pCPUs busy; only whatif simulates them."
        )
    if recording.changed:
        notes.append("pCPUs went online or offline meanwhile; the host is as it was at the start.")
    return notes


def _other_cores(recording: Recording, around: Surroundings) -> float | None:
    """How many pCPUs were busy with something other than vCPUs; ``None``: unknown."""
    if around.busy_cores is None:
        return None
    vcpus = [v for instance in recording.instances.values() for v in instance.vcpus]
    ran_s = math.fsum(sum(v.run_s) + v.elsewhere_s for v in vcpus)
    return max(0.0, around.busy_cores - ran_s / recording.lasted_s)


def _names(instances: Any) -> dict[str, str]:
    """A name for every instance: Nova's if it is unique, else libvirt's."""
    listed = list(instances)
    shown = Counter(i.domain.display_name for i in listed)
    names: dict[str, str] = {}
    for instance in listed:
        domain = instance.domain
        candidates = [domain.name, domain.resource]
        if shown[domain.display_name] == 1:
            candidates.insert(0, domain.display_name)
        taken = set(names.values())
        fitting = (c for c in candidates if c not in taken and _NAME.fullmatch(c) and c.strip())
        names[domain.resource] = next(fitting, f"instance {len(names) + 1}")
    return names


@dataclass(frozen=True, slots=True)
class _Instances:
    """Describes instances; adds to ``notes`` what is assumed."""

    topology: Topology
    around: Surroundings
    phases_max: int
    notes: list[str]

    @property
    def _pcpus(self) -> frozenset[int]:
        return frozenset(p.id for p in self.topology.pcpus)

    @property
    def types(self) -> tuple[CoreType, ...]:
        return self.topology.core_types

    def gains(self, resource: str, instance: RecordedInstance) -> list[Gain]:
        """The speedup of every vCPU, from the recording or from the agent, whichever is better."""
        hinted = hinted_speedup(instance.booking.efficiency, self.topology)
        published = self.around.published
        return [
            behaviour.gain(better(vcpu.speedup, published.get((resource, index))), hinted)
            for index, vcpu in enumerate(instance.vcpus)
        ]

    def vm(self, name: str, instance: RecordedInstance, gains: Sequence[Gain]) -> dict[str, Any]:
        """The entry in ``vms``."""
        entry: dict[str, Any] = {"name": name, "vcpus": len(instance.vcpus)}
        specs = self._specs(name, instance)
        if specs:
            entry["extra_specs"] = specs
        self._note_unknowns(name, instance, gains)
        each = [self._workload(instance, i, g) for i, g in enumerate(gains)]
        while len(each) > 1 and each[-1] == each[-2]:
            each.pop()
        entry["workload"] = each[0] if len(each) == 1 else {"vcpus": each}
        began = {v.position for v in instance.vcpus}
        if len(began) == 1 and (at := began.pop()) is not None:
            entry["start_on"] = self.types[at].name
        return entry

    def _workload(self, instance: RecordedInstance, index: int, gain: Gain) -> dict[str, Any]:
        vcpu = instance.vcpus[index]
        made = behaviour.workload(vcpu, self.types, gain, self.phases_max)
        ips = reference_ips(self.topology)
        if instance.booking.vcpus[index].ips is not None and ips is not None:
            made = behaviour.with_instructions(made, vcpu, ips, gain, self.types)
        return made

    def _specs(self, name: str, instance: RecordedInstance) -> dict[str, str]:
        """The extra specs, with the core type if the definition allows only one."""
        specs = {k: v for k, v in instance.domain.specs.items() if k.startswith("amp:")}
        if instance.errors:
            self.notes.append(f"{name}: its booking is invalid ({instance.errors[0]}): left out.")
            specs = {}
        if instance.booking.core_type not in (None, *(t.name for t in self.types)):
            left = specs.pop("amp:core_type", None)
            self.notes.append(f"{name}: amp:core_type={left} is not on this host: left out.")
        allowed = frozenset[int]().union(*instance.allowed.values()) & self._pcpus
        only = self.topology.only_type(allowed) if allowed else None
        if only is not None and len(self.types) > 1 and "amp:core_type" not in specs:
            specs["amp:core_type"] = only.name
            self.notes.append(
                f"{name}: its definition allows pCPUs {cpulist.show(allowed)} only; amp:core_type="
                f"{only.name} stands for that."
            )
        elif only is None and allowed != self._pcpus:
            self.notes.append(
                f"{name}: its definition allows pCPUs {cpulist.show(allowed)} only; here it may "
                "use all of the host."
            )
        return specs

    def _note_unknowns(self, name: str, instance: RecordedInstance, gains: Sequence[Gain]) -> None:
        """Add a note about what is unknown of an instance."""
        if len(self.types) > 1:
            for source, why in (
                (
                    ASSUMED,
                    "was never measured: null, which means that it gains what the coefficients say",
                ),
                (FLAVOR, "was never measured: it is what the flavor states (amp:efficiency)"),
            ):
                which = [i for i, g in enumerate(gains) if g.source == source]
                if which:
                    self.notes.append(f"{name}: the speedup of vCPU {cpulist.show(which)} {why}.")
        if instance.late or instance.early:
            self.notes.append(
                f"{name}: it existed for only a part of the recording; it sleeps for the rest."
            )

    def recorded(
        self, instance: RecordedInstance, gains: Sequence[Gain], lasted_s: float
    ) -> dict[str, Any]:
        """The entry in ``recorded.vms``: the numbers of the simulator's result, as measured."""
        pairs = list(zip(instance.vcpus, gains, strict=True))
        run_s = sum(sum(v.run_s) for v in instance.vcpus)
        unseen = sum(v.elsewhere_s for v in instance.vcpus) > UNSEEN_RATIO * max(run_s, 1e-9)
        # Work, in seconds on the slowest core type, over the time that passed.
        speeds = [
            sum(s * g.on(self.types, at) for at, s in enumerate(v.full_speed_s)) / lasted_s
            for v, g in pairs
        ]
        delivered = instance.windows.result() if instance.windows else Delivered()
        return {
            "instance": instance.domain.resource,
            "progress_refcores": None if unseen else _rounded(sum(speeds) / len(speeds)),
            "fast_share": None
            if unseen or not run_s
            else _rounded(sum(v.run_s[-1] for v in instance.vcpus) / run_s),
            "slowdown": None if unseen else _rounded(self._slowdown(instance, pairs)),
            "delivered_ratio": _rounded(delivered.ratio),
            "delivered_ratio_min": _rounded(delivered.least),
            "delivered_ratio_max": _rounded(delivered.most),
            "vcpus": [
                {
                    "cpu_s": {
                        t.name: round(s, 3) for t, s in zip(self.types, v.run_s, strict=True)
                    },
                    "speedup": g.ratio,
                    "speedup_error": g.error,
                    "speedup_source": g.source,
                }
                for v, g in pairs
            ],
        }

    def _slowdown(
        self, instance: RecordedInstance, pairs: Sequence[tuple[VcpuRecording, Gain]]
    ) -> float | None:
        only = instance.booking.core_type
        counts = [
            len(self.topology.pcpus_of(t.name)) * (only in (None, t.name)) for t in self.types
        ]
        shared = [
            (g.on(self.types, len(self.types) - 1), Recent(tuple(v.full_speed_s), v.demand_s))
            for v, g in pairs
        ]
        return slowdowns.slowdown(shared, self.types, counts)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)
