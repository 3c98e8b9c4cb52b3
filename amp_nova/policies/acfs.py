"""``acfs``: every vCPU is slowed down by the same factor.

Intuition. Compared with running alone on a big core, a vCPU on a small core loses its speedup. So
equal shares of the big cores are not fair: the higher a vCPU's speedup, the more big-core time it
needs to be slowed down as little as the others. Each vCPU has a virtual time that measures its
progress, in seconds that a big core would have needed, and the vCPUs furthest behind get the big
cores. No policy with as little unfairness has more throughput.

Formula. A second of running advances the virtual time by ``W_def / (S_core x W_t)``, where
``S_core`` is 1 on a big core and the vCPU's speedup on a small one (saez2015 eq. 3; on core types
in between, the speed on the fastest type over the speed there). With an ``unfairness_factor`` UF
above 1 it is divided further by ``1 + (UF - 1)(S - S_min) / (S_max - S_min)`` (eq. 5): high
speedups get more of the big cores, throughput rises, and unfairness stays below UF times the
optimum. Two vCPUs change places when the one on the big core is ahead by ``T_swap (1 - 1 /
SF_avg)`` (eq. 4, in seconds). Oracle: the slowdown S is the same for all, f_i = (1/S - 1/s_i) / (1
- 1/s_i) clipped to 0..1, and the f_i sum to NB.

Source. saez2015 section 3, with ``amp:weight`` as the weight. Unlike the paper, what a vCPU ran
before its speedup was known is entered once it is known; until then the mean of its instance, else
of the host, else the hardware's speedup stands in. The paper uses one speedup per multithreaded
application, which gains less the more of its threads have no big core (``application_wide``). That
is off by default: slowdown here is relative to as many fast cores as vCPUs, for which each vCPU's
own speedup is right.

Cost. Decisions are seconds apart, so a ``swap_s`` below the interval moves vCPUs at most once per
interval; ``N log N``.

When not to use it. For throughput (use ``hsp`` or ``amp-vm``), or where no instructions are
counted: without speedups every vCPU is taken to be slowed down as the hardware says, as in
``a-dwrr``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from amp_nova.hardware.relative_speed import gain, speed
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, VcpuView
from amp_nova.policies.parameters import at_least
from amp_nova.policies.placing import deficit, virtual_time
from amp_nova.policies.placing.core_shares import is_active
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import known_speedup, mean_known

UNFAIRNESS_KEPT = 0.97
"""Part of the allowed unfairness to aim at: vCPUs change places only every few seconds, which adds
some unfairness of its own."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What ``acfs`` keeps between decisions."""

    virtual_s: Mapping[VcpuKey, float] = field(default_factory=dict)
    pending_s: Mapping[VcpuKey, Sequence[float]] = field(default_factory=dict)
    """CPU seconds by core type of the vCPUs whose speedup is not known yet."""
    accounts: Accounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcfsPolicy:
    """The same slowdown for every vCPU."""

    unfairness_factor: float = 1.0
    """How much unfairness to accept for throughput, as a multiple of the least possible."""
    swap_s: float = 0.85
    """Mean time between two swaps that the threshold aims at (T_swap)."""
    application_wide: bool = False
    """Use the speedup of the whole instance, limited by the number of big cores."""
    name: str = "acfs"

    def __post_init__(self) -> None:
        at_least("unfairness_factor", self.unfairness_factor, 1.0)
        at_least("swap_s", self.swap_s, 0.0)

    def decide(self, view: HostView) -> Decision:
        """The vCPUs furthest behind get the big cores."""
        memory = view.memory if isinstance(view.memory, Memory) else Memory()
        accounts = deficit.update(view, memory.accounts)
        known = {v.key: self._speedup(view, accounts, v) for v in view.vcpus}
        types = view.topology.core_types
        mean = max(1.0, mean_known(known.values(), gain(types, len(types) - 1) or 1.0))
        rates = self._rates(view, known, mean)
        steps: dict[VcpuKey, float | None] = {}
        pending: dict[VcpuKey, Sequence[float]] = {}
        for vcpu in view.vcpus:
            ran_s = virtual_time.at_full_demand(view, vcpu)
            before_s = memory.pending_s.get(vcpu.key)
            if ran_s is not None and before_s is not None:
                ran_s = [a + b for a, b in zip(ran_s, before_s, strict=True)]
            if ran_s is not None and known[vcpu.key] is None:
                pending[vcpu.key] = ran_s
                steps[vcpu.key] = 0.0
            else:
                steps[vcpu.key] = virtual_time.scaled(ran_s, rates[vcpu.key])
        virtual_s = virtual_time.advance(view, memory.virtual_s, steps)
        claim = {
            key: -at_s - (virtual_time.scaled(pending.get(key), rates[key]) or 0.0)
            for key, at_s in virtual_s.items()
        }
        threshold_s = self.swap_s * (1.0 - 1.0 / mean)
        places, accounts = deficit.by_claim(view, accounts, claim, threshold_s)
        return Decision(places, Memory(virtual_s, pending, accounts), early=True)

    def _speedup(self, view: HostView, accounts: Accounts, vcpu: VcpuView) -> float | None:
        speedup = known_speedup(view, accounts, vcpu)
        if speedup is None or not self.application_wide:
            return speedup
        threads = sum(is_active(v) for v in view.vcpus if v.key[0] == vcpu.key[0])
        big = len(view.topology.pcpus_of(view.topology.core_types[-1].name))
        return 1.0 + (speedup - 1.0) * min(1.0, big / max(1, threads))

    def _rates(
        self, view: HostView, known: Mapping[VcpuKey, float | None], mean: float
    ) -> dict[VcpuKey, list[float]]:
        """Seconds of virtual time per second on each core type (eq. 3 and 5), for each vCPU."""
        of_instance: dict[str, list[float]] = {}
        for (instance, _), speedup in known.items():
            if speedup is not None:
                of_instance.setdefault(instance, []).append(speedup)
        found = [s for s in known.values() if s is not None]
        least, most = min(found, default=1.0), max(found, default=1.0)
        types, rates = view.topology.core_types, {}
        for vcpu in view.vcpus:
            own = known[vcpu.key]
            if own is None:
                own = mean_known(of_instance.get(vcpu.key[0], ()), mean)
            height = (own - least) / (most - least) if most > least else 0.0
            favour = UNFAIRNESS_KEPT * (self.unfairness_factor - 1.0) * height
            weight = vcpu.weight * (1.0 + favour)
            rates[vcpu.key] = [speed(types, at, own) / own / weight for at in range(len(types))]
        return rates
