# SPDX-License-Identifier: Apache-2.0
"""What a scenario would be with another policy, machine or booking, and how sure that is.

An answer is repeated with other seeds, which decide where guests start and what policies that place
at random do; with each guest in another of its phases; with guests that sleep as long as recorded
after the same work, or for the same share of time; with between none and twice as much of the other
processes that were recorded; with another end, within an interval of the policy; and with speedups
that differ by their standard errors. Another run of that kind is within the least and the greatest
of ``REPEATS`` with a probability of ``(REPEATS - 1) / (REPEATS + 1)``, whatever the distribution.
The interval is that range, widened by the relative difference between the recording and its
simulation without changes, and by ``KEPT_RATIO``.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import field, structs

from amp_nova.flavor.extra_specs import parse
from amp_nova.policies.api import Policy
from amp_nova_lab import run as simulation
from amp_nova_lab.report import Result
from amp_nova_lab.scenarios import hosts
from amp_nova_lab.scenarios.document import (
    Keys,
    NotNegative,
    Place,
    Positive,
    ScenarioInvalid,
    decode,
    nearest,
)
from amp_nova_lab.scenarios.scenario import Guest, Scenario
from amp_nova_lab.scenarios.workload import Io, Workload, usual

TOTALS = ("throughput", "unfairness")
OTHER_MOST_RATIO = 0.95
"""Processes other than vCPUs use no more of the pCPUs."""
KEPT_RATIO = 0.01
"""A host keeps a booking as exactly as this, as the user guide states."""
REPEATS = 19
"""Runs of an answer, for intervals that contain 9 of 10."""
Numbers = Mapping[tuple[str, str], float | None]
"""Numbers of a result or their errors, by VM (empty: the host) and name; ``None``: unknown."""
Distribution = Mapping[tuple[str, str], Sequence[float]]
"""Each number in all runs of an answer, in ascending order; empty if it is unknown."""
Intervals = Mapping[tuple[str, str], tuple[float, float] | None]
"""In what interval each number is, 9 times of 10."""


class VcpuHistory(Keys, frozen=True):
    """One vCPU; the speedup has an error if it was measured."""

    cpu_s: dict[str, NotNegative] = field(default_factory=dict)
    speedup: Positive | None = None
    speedup_error: NotNegative | None = None
    speedup_source: str | None = None


class RecordedVm(Keys, frozen=True):
    """One VM: ``MEASURES`` by name, ``None`` if unknown."""

    instance: str | None = None
    progress_refcores: NotNegative | None = None
    fast_share: NotNegative | None = None
    slowdown: NotNegative | None = None
    delivered_ratio: NotNegative | None = None
    delivered_ratio_min: NotNegative | None = None
    delivered_ratio_max: NotNegative | None = None
    vcpus: list[VcpuHistory] = field(default_factory=list)
    lasted_s: Positive = math.inf
    """That of the recording."""

    @property
    def measures(self) -> dict[str, float | None]:
        """The numbers that the result of a simulation has as well."""
        return {name: getattr(self, name) for name in MEASURES}

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Standard errors of the speedups of its vCPUs, ``None`` if never measured."""
        return tuple(vcpu.speedup_error for vcpu in self.vcpus)

    @property
    def cores(self) -> tuple[Mapping[str, float], ...]:
        """What each vCPU used, by core type."""
        return tuple(
            {name: min(1.0, used_s / self.lasted_s) for name, used_s in vcpu.cpu_s.items()}
            for vcpu in self.vcpus
        )


class RecordedKeys(Keys, frozen=True):
    """What a recording measured; ``other_cores``: by other processes than vCPUs."""

    vms: dict[str, object]
    lasted_s: Positive = math.inf
    other_cores: NotNegative = 0.0


MEASURES = RecordedVm.__struct_fields__[1:-2]
Recorded = Mapping[str, RecordedVm]


def recorded(whole: Place) -> Recorded | None:
    """The VMs of a recording by name; ``None`` if the scenario is not a recording.

    Raises ``ScenarioInvalid`` for a value that ``amp-nova record`` does not write.
    """
    keys = _recorded(whole)
    if keys is None:
        return None
    places = whole["recorded"]["vms"].entries()
    vms = {name: decode(places[name], RecordedVm) for name in keys.vms}
    return {name: structs.replace(vm, lasted_s=keys.lasted_s) for name, vm in vms.items()}


def beside_others(made: Scenario, whole: Place) -> Scenario:
    """The scenario with the recorded load of processes other than vCPUs."""
    keys = _recorded(whole)
    cores = 0.0 if keys is None else keys.other_cores
    ratio = min(OTHER_MOST_RATIO, cores / len(made.topology.pcpus))
    return replace(made, machine=replace(made.machine, other_ratio=ratio))


def _recorded(whole: Place) -> RecordedKeys | None:
    at = whole.entries().get("recorded")
    return None if at is None or at.plain() is None else decode(at, RecordedKeys)


def with_cores(made: Scenario, name: str, more: int) -> Scenario:
    """The scenario with more or fewer cores of a type; a type without cores is removed.

    A new core has all its hardware threads, and shares the last-level cache of the type's last one.
    """
    types = {t.name: t for t in made.topology.core_types}
    if name not in types:
        raise ScenarioInvalid(f"the scenario has no core type '{name}': {nearest(name, types)}")
    own = [(p.core_type, p.llc or 0) for p in made.topology.pcpus if p.core_type == name]
    first = min(made.topology.pcpus_of(name))
    threads = types[name].threads_per_core
    left = len(own) + more * threads
    if left < 0:
        cores = len(own) // threads
        raise ScenarioInvalid(
            f"core type '{name}' has {cores} cores, so {more:+d} is too many: take {cores} at most"
        )
    others = [(p.core_type, p.llc or 0) for p in made.topology.pcpus if p.core_type != name]
    caches = [*others[:first], *(own + own[-1:] * left)[:left], *others[first:]]
    if len(caches) > hosts.PCPUS_MAX:
        raise ScenarioInvalid(
            f"with {more:+d} cores of type '{name}' the host has more than {hosts.PCPUS_MAX} pCPUs:"
            " add fewer"
        )
    if not left:
        made = _without_type(made, name)
        del types[name]
    return replace(made, topology=hosts.topology(types, caches, made.topology.reference))


def _without_type(made: Scenario, name: str) -> Scenario:
    """The scenario without what guests and the machine say of a core type."""
    at = next(i for i, t in enumerate(made.topology.core_types) if t.name == name)
    if at == 0:
        raise ScenarioInvalid(
            f"core type '{name}' is the slowest, to which all speeds are relative: leave one core "
            "of it"
        )
    for guest in made.guests:
        if guest.booking.core_type == name:
            raise ScenarioInvalid(
                f"VM '{guest.name}' has amp:core_type={name}: leave one core of that type"
            )
    guests = [
        replace(
            guest,
            workload=_without_speed(guest.workload, at, name),
            start_on=None if guest.start_on == name else guest.start_on,
        )
        for guest in made.guests
    ]
    clocks = {n: c for n, c in made.machine.clocks.items() if n != name}
    return replace(
        made,
        guests=tuple(guests),
        machine=replace(made.machine, clocks=clocks),
    )


def _without_speed(workload: Workload, at: int, name: str) -> Workload:
    phases = [replace(p, speeds=p.speeds[:at] + p.speeds[at + 1 :]) for p in workload.phases]
    return replace(
        workload,
        phases=tuple(phases),
        ipc={n: ipc for n, ipc in workload.ipc.items() if n != name},
        vcpus=tuple(_without_speed(own, at, name) for own in workload.vcpus),
    )


def with_booking(made: Scenario, name: str, refcores: str) -> Scenario:
    """The scenario in which each vCPU of a VM books this much; ``0``: it books nothing."""
    vms = {guest.name: guest for guest in made.guests}
    if name not in vms:
        raise ScenarioInvalid(f"the scenario has no VM '{name}': {nearest(name, vms)}")
    old = vms[name]
    specs = {k: v for k, v in old.specs.items() if not k.startswith(("amp:pref_core", "amp:ips"))}
    if refcores != "0":
        specs["amp:pref_core"] = refcores
    new = replace(old, specs=specs, booking=parse(specs, len(old.booking.vcpus)))
    return replace(made, guests=tuple(new if g is old else g for g in made.guests))


def varied(made: Scenario, recorded: Recorded, seed: int) -> Scenario:
    """The scenario as it may be as well, as far as the recording knows."""
    chance = random.Random(f"{made.seed} {seed} what if")
    coefficients = usual(made.topology).phases[0].speeds

    def other(guest: Guest) -> Guest:
        errors = recorded[guest.name].errors if guest.name in recorded else (0.0,)
        start_on = guest.start_on if guest.booking.booked else None
        workload = _varied(guest.workload, errors, coefficients, chance, chance.random())
        if guest.name in recorded and chance.random() < 0.5:
            types = [t.name for t in made.topology.core_types]
            workload = _by_work(workload, types, recorded[guest.name].cores)
        return replace(guest, workload=workload, start_on=start_on)

    guests = tuple(other(guest) for guest in made.guests)
    ratio = min(OTHER_MOST_RATIO, made.machine.other_ratio * chance.uniform(0.0, 2.0))
    machine = replace(made.machine, other_ratio=ratio)
    interval_s = min(made.agent.policy.interval_s, made.duration_s / 2.0)
    lasts_s = made.duration_s + chance.uniform(-interval_s, interval_s)
    seed = chance.getrandbits(32)
    return replace(made, guests=guests, machine=machine, seed=seed, duration_s=lasts_s)


def _varied(
    workload: Workload,
    errors: Sequence[float | None],
    coefficients: Sequence[float],
    chance: random.Random,
    passed_ratio: float,
) -> Workload:
    """``errors`` of vCPU 0, 1, ...; the last one counts for all after it.

    ``passed_ratio``: how many of its phases are already over.
    """
    by, begins = chance.gauss(0.0, 1.0), int(passed_ratio * len(workload.phases))
    phases = tuple(
        replace(p, speeds=_speeds(p.speeds, errors[0] if errors else 0.0, coefficients, by))
        for p in (*workload.phases[begins:], *workload.phases[:begins])
    )
    vcpus = tuple(
        _varied(own, errors[min(index, len(errors) - 1) :], coefficients, chance, passed_ratio)
        for index, own in enumerate(workload.vcpus)
    )
    return replace(workload, phases=phases, vcpus=vcpus)


def _by_work(
    workload: Workload, types: Sequence[str], cores: Sequence[Mapping[str, float]]
) -> Workload:
    """It sleeps as long as in the recording, after the same work, however fast it is."""
    if workload.vcpus:
        own = [
            _by_work(one, types, cores[min(index, len(cores) - 1) :])
            for index, one in enumerate(workload.vcpus)
        ]
        return replace(workload, vcpus=tuple(own))
    phase, *others = workload.phases
    speeds = dict(zip(types, phase.speeds, strict=True))
    used = cores[0].items() if cores else ()
    work_ref_s = sum(share * speeds.get(name, 1.0) for name, share in used)
    asleep = 1.0 - phase.utilization_ratio
    waits = workload != Workload(workload.phases, ipc=workload.ipc)  # for something else
    if others or waits or not (work_ref_s and asleep):
        return workload
    return replace(
        workload,
        phases=(replace(phase, utilization_ratio=1.0),),
        io=Io(work_ref_s, 1.0 / asleep, overlap_ratio=0.0),
    )


def _speeds(
    speeds: tuple[float, ...], error: float | None, coefficients: Sequence[float], by: float
) -> tuple[float, ...]:
    """Speeds that are off by so many errors; one never measured may be any up to coefficients."""
    slowest, *others = speeds
    top = max(others, default=1.0)
    if error is None:
        part = 0.5 + 0.5 * math.erf(by / math.sqrt(2.0))  # evenly between 0 and 1
        pairs = zip(others, coefficients[1:], strict=True)
        others = [1.0 + part * (max(pair) - 1.0) for pair in pairs]
    elif top == 1.0:
        others = [speed + by * error for speed in others]
    else:
        factor = (top - 1.0 + by * error) / (top - 1.0)
        others = [1.0 + (speed - 1.0) * factor for speed in others]
    return slowest, *(min(max(s, hosts.RATE_LEAST), hosts.RATE_MOST) for s in others)


def totals(recorded: Recorded) -> Mapping[str, float | None]:
    """The recorded numbers of the whole host; ``None`` if that of a VM is unknown."""
    progress = [vm.measures["progress_refcores"] for vm in recorded.values()]
    slowdowns = [vm.measures["slowdown"] for vm in recorded.values()]
    speeds = [p for p in progress if p is not None]
    slowed = [s for s in slowdowns if s]
    return {
        "throughput": sum(speeds) / len(speeds)
        if speeds and len(speeds) == len(progress)
        else None,
        "unfairness": max(slowed) / min(slowed)
        if slowed and len(slowed) == len(slowdowns)
        else None,
    }


def _numbers(result: Result) -> Numbers:
    """The numbers of a result that a recording has as well."""
    vms = {(name, m): getattr(vm, m) for name, vm in result.vms.items() for m in MEASURES}
    return {**{("", t): getattr(result, t) for t in TOTALS}, **vms}


def model_error(as_is: Result, recorded: Recorded) -> Numbers:
    """Relative difference between a recording and its simulation without changes."""
    measures: Numbers = {
        **{("", name): total for name, total in totals(recorded).items()},
        **{(name, m): vm.measures[m] for name, vm in recorded.items() for m in MEASURES},
    }
    return {key: _relative(number, measures.get(key)) for key, number in _numbers(as_is).items()}


def _relative(simulated: float | None, recorded: float | None) -> float | None:
    if simulated is None or not recorded:
        return None
    return abs(simulated - recorded) / recorded


def predict(
    made: Scenario, policy: Policy, recorded: Recorded | None, model: Numbers | None
) -> tuple[Result, Distribution, Intervals]:
    """The result of a scenario, and how it may differ; ``model``: the errors of the simulation."""
    result = simulation.run(made, policy)
    repeats = (varied(made, recorded or {}, number) for number in range(REPEATS))
    all_ = [_numbers(result), *(_numbers(simulation.run(other, policy)) for other in repeats)]
    distribution = {k: sorted(v for run in all_ if (v := run[k]) is not None) for k in all_[0]}
    by = {k: 0.0 if model is None else (model.get(k) or 0.0) + KEPT_RATIO for k in distribution}
    # The range of these values, widened by the error of the model.
    intervals = {
        k: (values[0] * (1.0 - min(by[k], 1.0)), values[-1] * (1.0 + by[k])) if values else None
        for k, values in distribution.items()
    }
    return result, distribution, intervals
