# SPDX-License-Identifier: Apache-2.0
"""``eqp``: equal progress, from the total time on each core type and the current speedup.

Intuition. The instances that have been slowed down most so far get the big cores.

Formula. ``slowdown = alone (t_big + t_small) / (SF t_big + t_small)``, where t are the CPU seconds
on each core type since the start, SF is the current speedup, and ``alone = 1 + (SF - 1) min(1, NB /
n)`` the speed alone on this host. The highest slowdowns get the big cores.

Source. saez2015 section 2.3 (EQP). With constant speedups it converges to the same shares as
``acfs``. Two of the published weaknesses are kept, because the policy exists for comparison: the
current SF is applied to the past, so a phase change rewrites history, and there are no priorities.
Deviations, and what they gain: instances are compared, not threads, so that their slowdowns are
equal, and SF is measured within one phase of the program. ``printed=2.3`` does as the paper says:
it compares threads (as ``per_vcpu=true`` alone does), samples the IPC of each on both core types at
least once a minute, and multiplies the ratio of the samples by that of the clocks, even if the
samples are from different phases. (If a clock is unknown, the coefficients are used instead.) An
unknown SF counts as the mean of the known ones or, if there are none, as the hardware's.

Cost. Moves every interval; ``N log N``.

When not to use it. With programs that have phases; ``acfs`` counts each phase at its own speedup.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from amp_nova.hardware.effective_speed import gain, speed_over
from amp_nova.model.observation import VcpuKey
from amp_nova.model.topology import CoreType
from amp_nova.policies.api import Decision, HostView, VcpuView
from amp_nova.policies.placing import deficit
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import assumed_speedup, known_speedups
from amp_nova.policies.placing.whole_instances import instances_of
from amp_nova_lab.policies.parameters import sections

SAMPLING = "2.3"
SAMPLE_MAX_S = 60.0
"""Age at which a sample is taken again."""
_MOST_RATIO = 0.9
"""An interval is a sample of a core type if the vCPU ran there for this share of its time."""
Samples = tuple[tuple[float, float] | None, ...]
"""The last IPC by core type, slowest first, and its age in seconds; ``None``: never sampled."""


@dataclass(frozen=True, slots=True)
class EqpMemory:
    """What ``eqp`` keeps between decisions."""

    accounts: Accounts = field(default_factory=dict)
    samples: Mapping[VcpuKey, Samples] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EqpPolicy:
    """Equal slowdown, from totals."""

    per_vcpu: bool = False
    """Slow down every vCPU equally, each compared with itself on a dedicated fast core."""
    printed: str = ""
    """Sections of saez2015 to follow as printed: 2.3."""
    name: str = "eqp"

    def __post_init__(self) -> None:
        sections(self.printed, (SAMPLING,))

    def decide(self, view: HostView) -> Decision:
        """The instances with the highest slowdown get the big cores."""
        memory = view.memory if isinstance(view.memory, EqpMemory) else EqpMemory()
        accounts = deficit.update(view, memory.accounts)
        sampling, types = SAMPLING in self.printed, view.topology.core_types
        speedups, samples = known_speedups(view, accounts), {}
        if sampling:
            samples = {v.key: _sampled(view, v, memory.samples.get(v.key)) for v in view.vcpus}
            speedups = {key: _sampled_speedup(types, sample) for key, sample in samples.items()}
        mean = assumed_speedup(types, speedups)
        instances = instances_of(view, speedups, accounts, per_vcpu=self.per_vcpu or sampling)
        claim = {}
        for instance in instances.values():
            own = mean if instance.speedup is None else instance.speedup
            ran = [accounts[v.key].ran_s for v in instance.vcpus]
            ran_s = [sum(on_type) for on_type in zip(*ran, strict=True)]
            whole = instance.whole_speedup(types, own)
            progress_s = speed_over(types, ran_s, own) / whole
            # What one vCPU on a big core for the next interval adds.
            step_s = view.interval_s * (own - 1.0) / whole
            for turn, vcpu in enumerate(instance.in_turn(accounts)):
                becomes_s = progress_s + turn * step_s
                claim[vcpu.key] = sum(ran_s) / becomes_s if becomes_s > 0.0 else 1.0
        for key, sample in samples.items():
            claim[key] = _to_sample(sample, claim.get(key, 1.0))
        places = deficit.by_claim(view, claim)
        return Decision(places, EqpMemory(accounts, samples), early=True)


def _sampled(view: HostView, vcpu: VcpuView, before: Samples | None) -> Samples:
    """The samples of a vCPU after an interval."""
    types = len(view.topology.core_types)
    samples = before if before is not None and len(before) == types else (None,) * types
    aged = [None if s is None else (s[0], s[1] + view.elapsed_s) for s in samples]
    if vcpu.ipc is not None and len(vcpu.cpu_s) == types and sum(vcpu.cpu_s) > 0.0:
        at = max(range(types), key=vcpu.cpu_s.__getitem__)
        if vcpu.cpu_s[at] >= _MOST_RATIO * sum(vcpu.cpu_s):
            aged[at] = (vcpu.ipc, 0.0)
    return tuple(aged)


def _sampled_speedup(types: tuple[CoreType, ...], samples: Samples) -> float | None:
    """``IPS_big / IPS_small`` of the last samples, even if they are from different phases."""
    big, small = samples[-1], samples[0]
    clocks = types[-1].clock_hz, types[0].clock_hz
    ratio = gain(types, len(types) - 1)
    if clocks[0] and clocks[1]:
        ratio = clocks[0] / clocks[1]
    if big is None or small is None or ratio is None or small[0] <= 0.0:
        return None
    return ratio * big[0] / small[0]


def _to_sample(samples: Samples, claim: float) -> float:
    """The claim; the strongest or weakest of all if the big or small core has to be sampled."""
    if not any(samples):
        return claim  # nothing is counted
    old = [s is None or s[1] > SAMPLE_MAX_S for s in samples]
    return float("inf") if old[-1] else float("-inf") if old[0] else claim
