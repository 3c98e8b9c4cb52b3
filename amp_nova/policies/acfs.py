# SPDX-License-Identifier: Apache-2.0
"""``acfs``: every instance is slowed down by the same factor.

Intuition. Compared with running alone on this host, an instance that has fewer turns on the big
cores loses part of its speedup. So equal shares of the big cores are not fair: the higher an
instance's speedup, the more big-core time it needs to be slowed down as little as the others. And
an instance with more vCPUs than there are big cores gains little from them even alone. Each
instance has a virtual time that measures its progress, in seconds that it would have needed alone,
and the instances furthest behind get the big cores. Their vCPUs take turns. No policy with as
little unfairness has more throughput.

Formula. With n of its vCPUs running at a time, an instance of speedup s would run at ``alone = 1 +
(s - 1) min(1, NB / n)`` per vCPU. A second advances its virtual time by ``speed / alone / weight``,
where the speed is the mean of its vCPUs': s on a big core, 1 on a small one. With an
``unfairness_factor`` UF above 1 it is divided further by ``1 + (UF - 1)(S - S_min) / (S_max -
S_min)``, where S is ``alone`` (saez2015 eq. 5): high speedups get more of the big cores, throughput
rises, and unfairness stays below UF times the optimum. Two vCPUs change places when the one on the
big core is ahead by what its instance gains there in ``T_swap`` seconds (eq. 4). Each further vCPU
of an instance claims less, by what the ones before it would gain. Oracle: the slowdown S is the
same for all, ``f_i = (alone_i / S - 1) / (s_i - 1)`` clipped to 0 .. min(1, NB / n_i), and the sum
of the ``n_i f_i`` is NB.

Source. saez2015 section 3, with ``amp:weight`` as the weight. Deviations, and what they gain; the
simulator has them as printed, too (``amp_nova_lab/policies/as_printed``):

* Eq. 3 gives every thread a virtual time of its own, which advances by ``1 / S`` a second on a
  small core and 1 on a big one, S being the ``alone`` of its program. With more threads than big
  cores that understates what a big core adds to the program. Here the progress of the whole
  instance counts, so unfairness is optimal with any number of vCPUs.
* Eq. 4 uses the mean speedup: ``T_swap (1 - 1 / SF_avg)``. Here it is the instance's own, in the
  progress of the whole instance, so that those with many vCPUs change places as often.
* A new instance starts at the virtual time at which vCPUs change places, not at the greatest one,
  which runs ahead without limit if an instance gains too little to be moved (note 4).
* A speedup counts once it has been measured on both core types, since no model is sure of it. Time
  before that is entered at the host's mean speedup (or else the hardware's) and corrected later.
* The unfairness factor aims at 0.95 of the unfairness that it allows, because vCPUs change places
  only every few seconds, which adds some of its own.

With ``per_vcpu=true`` every vCPU is an instance of its own, compared with itself on a dedicated big
core.

Cost. ``N log N``. A vCPU on a big core keeps it for about ``swap_s``, and the vCPUs of an instance
take turns on what the instance has. ``swap_s=0.85``, as published, moves vCPUs at every decision;
on the mixes of saez2015 the default makes fewer than half of the moves and is at most 2 % less
fair.

When not to use it. For throughput (use ``hsp`` or ``amp-vm``), or if instructions are not counted:
without measurements every instance is assumed to have the hardware's speedup.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.policies.api import Decision, HostView, at_least
from amp_nova.policies.placing import deficit, virtual_time
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import assumed_speedup, known_speedups
from amp_nova.policies.placing.whole_instances import InstanceView, Name, instances_of, take_turns

UNFAIRNESS_KEPT = 0.95
"""Part of the allowed unfairness to aim at: vCPUs change places only every few seconds, which adds
some unfairness of its own."""
Estimated = tuple[Sequence[float], float]
"""CPU seconds by core type of an instance that is still to be tried, and the virtual time that was
entered for them."""


@dataclass(frozen=True, slots=True)
class AcfsMemory:
    """What ``acfs`` keeps between decisions."""

    virtual_s: Mapping[Name, float] = field(default_factory=dict)
    estimated: Mapping[Name, Estimated] = field(default_factory=dict)
    accounts: Accounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcfsPolicy:
    """Equal slowdown of instances, by virtual time."""

    unfairness_factor: float = 1.0
    """How much more unfairness than the optimum is allowed, in exchange for throughput (UF)."""
    swap_s: float = 4.0
    """Time on a big core for which a vCPU is not replaced (T_swap; 0.85 in the paper)."""
    per_vcpu: bool = False
    """Slow down every vCPU equally, each compared with itself on a dedicated fast core."""
    name: str = "acfs"

    def __post_init__(self) -> None:
        at_least("unfairness_factor", self.unfairness_factor, 1.0)
        at_least("swap_s", self.swap_s, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The instances furthest behind get the big cores."""
        memory = view.memory if isinstance(view.memory, AcfsMemory) else AcfsMemory()
        accounts = deficit.update(view, memory.accounts)
        speedups = known_speedups(view, accounts)
        instances = instances_of(view, speedups, accounts, per_vcpu=self.per_vcpu)
        mean = assumed_speedup(view.topology.core_types, speedups)
        own = {name: mean if i.speedup is None else i.speedup for name, i in instances.items()}
        rates = self.rates(view, instances, own)
        steps, estimated = steps_of(view, instances, rates, memory.estimated)
        sizes = {name: len(instance.active) for name, instance in instances.items()}
        virtual_s = virtual_time.advance(view, memory.virtual_s, steps, sizes)
        claim_s, threshold_s = {}, {}
        for name, instance in instances.items():
            rate = rates[name]
            # What one vCPU on a big core adds for the instance.
            gain_ratio = (rate[-1] - rate[0]) / instance.running
            for turn, vcpu in enumerate(instance.in_turn(accounts)):
                claim_s[vcpu.key] = -virtual_s[name] - turn * gain_ratio * view.interval_s
                threshold_s[vcpu.key] = self.swap_s * gain_ratio
        places = deficit.by_claim(view, claim_s, threshold_s)
        places = take_turns(view, places, instances, accounts)
        return Decision(places, AcfsMemory(virtual_s, estimated, accounts), early=True)

    def rates(
        self, view: HostView, instances: Mapping[Name, InstanceView], own: Mapping[Name, float]
    ) -> dict[Name, list[float]]:
        """Seconds of virtual time per second on each core type (eq. 3 and 5), by instance."""
        types, rates = view.topology.core_types, {}
        whole = {name: i.whole_speedup(types, own[name]) for name, i in instances.items()}
        speedups = [whole[name] for name, i in instances.items() if i.speedup is not None]
        least, most = min(speedups, default=1.0), max(speedups, default=1.0)
        for name, instance in instances.items():
            height = (whole[name] - least) / (most - least) if most > least else 0.0
            favour = UNFAIRNESS_KEPT * (self.unfairness_factor - 1.0) * height
            speeds = instance.speeds(types, own[name])
            alone = math.fsum([a * s for a, s in zip(instance.alone, speeds, strict=True)])
            weight = instance.vcpus[0].weight * (1.0 + favour)
            rates[name] = [s / alone / weight for s in speeds]
        return rates


def steps_of(
    view: HostView,
    instances: Mapping[Name, InstanceView],
    rates: Mapping[Name, Sequence[float]],
    before: Mapping[Name, Estimated],
) -> tuple[dict[Name, float | None], dict[Name, Estimated]]:
    """The step of each virtual time in the last interval, and the estimates still to be corrected.

    An estimate is corrected as soon as the speedup is known.
    """
    steps: dict[Name, float | None] = {}
    estimated: dict[Name, Estimated] = {}
    zero = (0.0,) * len(view.topology.core_types)
    for name, instance in instances.items():
        ran_s = virtual_time.at_full_demand(view, instance.vcpus)
        step_s = virtual_time.scaled(ran_s, rates[name])
        total_s, entered_s = before.get(name, (zero, 0.0))
        if len(total_s) != len(zero):
            total_s, entered_s = zero, 0.0
        if instance.untried or step_s is None:
            total_s = [a + b for a, b in zip(total_s, ran_s or zero, strict=True)]
            estimated[name] = (total_s, entered_s + (step_s or 0.0))
        else:
            step_s += math.fsum(s * r for s, r in zip(total_s, rates[name], strict=True))
            step_s -= entered_s
        steps[name] = step_s
    return steps, estimated
