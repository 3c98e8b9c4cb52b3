# SPDX-License-Identifier: Apache-2.0
"""``acfs`` and ``hsp`` as saez2015 prints them: ``acfs:printed=2.2,3``.

* 2.2 (both) trusts an estimate of a speedup from one core type: the paper's model needs the
  counters of one type only.
* 3 (``acfs``) gives every thread a virtual time of its own, which advances by the speedup of its
  program (eq. 3), swaps by the mean speedup (eq. 4), and starts a newcomer at the greatest virtual
  time (note 4).
* 3.1 (``acfs``) aims at all of the unfairness factor.

The policies themselves say what they do instead, and what that gains.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amp_nova.model.observation import VcpuKey
from amp_nova.policies.acfs import UNFAIRNESS_KEPT, AcfsMemory, AcfsPolicy, steps_of
from amp_nova.policies.api import Decision, HostView, Policy
from amp_nova.policies.hsp import HspPolicy
from amp_nova.policies.placing import deficit, virtual_time
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import assumed_speedup, known_speedups
from amp_nova.policies.placing.whole_instances import instances_of, take_turns
from amp_nova_lab.policies.parameters import sections

TRUST, THREADS, FACTOR = "2.2", "3", "3.1"


def trusted_speedups(view: HostView, accounts: Accounts) -> dict[VcpuKey, float | None]:
    """The speedup of every vCPU; a model's estimate counts at once."""
    known = known_speedups(view, accounts)
    return {v.key: known[v.key] if v.speedup is None else v.speedup for v in view.vcpus}


@dataclass(frozen=True, slots=True)
class HspAsPrinted(HspPolicy):
    """Big cores to the highest speedups, as estimated."""

    printed: str = ""
    """Sections of saez2015 to follow as printed: 2.2."""

    def __post_init__(self) -> None:
        HspPolicy.__post_init__(self)
        sections(self.printed, (TRUST,))

    def decide(self, view: HostView) -> Decision:
        """The instances that gain most get the big cores."""
        accounts = deficit.update(view, view.memory)
        speedups = trusted_speedups if self.printed else known_speedups
        return self.by_speedup(view, speedups(view, accounts), accounts)


@dataclass(frozen=True, slots=True)
class AcfsAsPrinted(AcfsPolicy):
    """Equal slowdown of instances or threads, by virtual time."""

    printed: str = ""
    """Sections of saez2015 to follow as printed: 2.2, 3, 3.1."""

    def __post_init__(self) -> None:
        AcfsPolicy.__post_init__(self)
        sections(self.printed, (TRUST, THREADS, FACTOR))

    def decide(self, view: HostView) -> Decision:
        """The instances, or threads, furthest behind get the big cores."""
        printed = sections(self.printed, (TRUST, THREADS, FACTOR))
        memory = view.memory if isinstance(view.memory, AcfsMemory) else AcfsMemory()
        accounts, threads = deficit.update(view, memory.accounts), THREADS in printed
        speedups = (trusted_speedups if TRUST in printed else known_speedups)(view, accounts)
        instances = instances_of(view, speedups, accounts, per_vcpu=self.per_vcpu)
        types = view.topology.core_types
        mean = assumed_speedup(types, speedups)
        own = {name: mean if i.speedup is None else i.speedup for name, i in instances.items()}
        if threads:
            whole = {name: i.whole_speedup(types, own[name]) for name, i in instances.items()}
            instances = instances_of(view, speedups, accounts, per_vcpu=True)
            own = {n: whole[n if self.per_vcpu else n[0]] for n in instances}
        favour = (self.unfairness_factor - 1.0) / (UNFAIRNESS_KEPT if FACTOR in printed else 1.0)
        rates = replace(self, unfairness_factor=1.0 + favour).rates(view, instances, own)
        steps, estimated = steps_of(view, instances, rates, memory.estimated)
        sizes = {name: len(instance.active) for name, instance in instances.items()}
        virtual_s = virtual_time.advance(view, memory.virtual_s, steps, sizes)
        if threads:
            old_s = [at_s for name, at_s in virtual_s.items() if name in memory.virtual_s]
            new = virtual_s.keys() - memory.virtual_s.keys()
            virtual_s |= dict.fromkeys(new, max(old_s, default=0.0))
        claim_s, threshold_s = {}, {}
        for name, instance in instances.items():
            gain_ratio = (rates[name][-1] - rates[name][0]) / instance.running
            for turn, vcpu in enumerate(instance.in_turn(accounts)):
                claim_s[vcpu.key] = -virtual_s[name] - turn * gain_ratio * view.interval_s
                threshold_s[vcpu.key] = self.swap_s * (1.0 - 1.0 / mean if threads else gain_ratio)
        places = deficit.by_claim(view, claim_s, threshold_s)
        places = take_turns(view, places, instances, accounts)
        return Decision(places, AcfsMemory(virtual_s, estimated, accounts), early=True)


AS_PRINTED: Mapping[str, type[Policy]] = {"acfs": AcfsAsPrinted, "hsp": HspAsPrinted}
"""Policies of amp-nova whose printed form is here."""
