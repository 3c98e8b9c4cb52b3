# SPDX-License-Identifier: Apache-2.0
"""``integrated``: an instance's vCPUs together on one core type, and all cores evenly loaded.

Intuition. A parallel program waits for its slowest thread. If one vCPU is on a fast core and
another on a slow one, or two share a core, the fast one waits. The paper has three principles:

1. The vCPUs of an instance run on cores of one type, and no two of them on one core.
2. Those of a parallel program are scheduled together, others independently.
3. Cores are loaded in proportion to their speed.

Formula. When an instance starts or ends, or when bookings fill a core type, the instances are
mapped one after another: ``UF = mu x Demand + (1 - mu) x Load``, with ``Demand = max(0, n - N(FC))
/ N(SC)`` and ``Load = max(0, AvgLoad(FC) - AvgLoad(SC))``. A core's load is the sum of ``weight /
n`` over its vCPUs, divided by its speed. With ``UF <= threshold`` the instance's n vCPUs go to the
n least loaded fast cores, else to slow ones. An instance with more vCPUs than there are slow cores
goes to the least loaded cores of any type. Then, every interval, cores of one type even out their
loads, and a core without a vCPU takes one from a core of another type that has several, preferably
of an instance that does not belong there (queues 3, 2, 1 of the paper).

Source. chen2014 sections 2.2, 3.1 and 3.4, with mu = 0.6 and threshold = 0.3. With more than two
core types, all types slower than a type together are its SC. Two points that the paper leaves open:
an instance with more vCPUs than there are fast cores does not go there (principle 1), and loads are
relative to their sum, so that the scale of the weights does not matter.

What differs from the paper. There, a cycle has three slots of 10 ms, and scaled resources pay for
each: an instance on fast cores runs less often. An agent has no slots. It decides every interval
which vCPUs share a pCPU, and the kernel decides how. Principle 1 gives co-scheduling: with one core
for each, the vCPUs of an instance run at the same time. On shared cores nothing aligns them,
because the kernel starts the bandwidth period of each cgroup independently and offers no way to set
the start. ``sim.slots.integrated`` is the algorithm in slots: ``amp-nova simulate --set
slots=true``.

Cost. Moves when instances start or end, few otherwise; N times the number of pCPUs.

When not to use it. For fairness or for throughput of single-threaded instances. An instance mapped
to slow cores stays there even while a fast core idles, unless one of its vCPUs waits for a core.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from amp_nova.hardware.effective_speed import gain
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import Decision, HostView, Places, VcpuView, at_least
from amp_nova.policies.placing.core_shares import by_instance, shared_capacity
from amp_nova_lab.policies.parameters import ratio
from amp_nova_lab.policies.pinned import has_time

_NOISE = 1e-9
Vm = Sequence[VcpuView]


class _FilledCores:
    """The pCPUs of a host, and the vCPUs that have been put on them so far."""

    def __init__(self, view: HostView, instances: Mapping[str, Vm]) -> None:
        types = view.topology.core_types
        self.of_type = [sorted(view.topology.pcpus_of(t.name)) for t in types]
        total = sum(v.weight for vcpus in instances.values() for v in vcpus[:1])
        self.weight = {
            v.key: v.weight / total / len(vcpus) for vcpus in instances.values() for v in vcpus
        }
        self.speed = {
            p: (gain(types, at) or 1.0) * max(1e-3, view.free_cores.get(p, 0.0))
            for at, ids in enumerate(self.of_type)
            for p in ids
        }
        self.has_time = {p: has_time(view, p) for p in self.speed}
        self.load = dict.fromkeys(self.speed, 0.0)
        self.on: dict[VcpuKey, int] = {}
        self.there: dict[int, Counter[str]] = {p: Counter() for p in self.speed}
        self.members: dict[int, dict[VcpuKey, None]] = {p: {} for p in self.speed}

    def put(self, key: VcpuKey, pcpu: int) -> None:
        """Put a vCPU on a pCPU, and take it off the one it was on."""
        if (old := self.on.pop(key, None)) is not None:
            self.there[old][key[0]] -= 1
            del self.members[old][key]
            self.load[old] -= self.weight[key] / self.speed[old]
        self.on[key] = pcpu
        self.there[pcpu][key[0]] += 1
        self.members[pcpu][key] = None
        self.load[pcpu] += self.weight[key] / self.speed[pcpu]

    def count(self, pcpu: int) -> int:
        """Number of vCPUs on a pCPU."""
        return len(self.members[pcpu])

    def beside(self, key: VcpuKey, pcpu: int) -> bool:
        """Whether a pCPU has a vCPU of the same instance."""
        return self.there[pcpu][key[0]] > 0

    def mean_load(self, pcpus: Sequence[int]) -> float:
        """Average load of the given pCPUs, 0 if there are none."""
        return sum(self.load[p] for p in pcpus) / len(pcpus) if pcpus else 0.0

    def pcpus(self, home: int | None) -> list[int]:
        """The pCPUs of a core type; of all types if ``home`` is ``None``."""
        return sorted(self.load) if home is None else self.of_type[home]

    def least_loaded(self, vcpu: VcpuView, home: int | None) -> int | None:
        """The least loaded pCPU for a vCPU, preferably without a vCPU of its own instance."""
        usable = [p for p in self.pcpus(home) if p in vcpu.allowed]
        if not usable:
            return None

        def order(pcpu: int) -> tuple[bool, bool, float, int]:
            beside = self.beside(vcpu.key, pcpu)
            return not self.has_time[pcpu], beside, round(self.load[pcpu], 9), pcpu

        return min(usable, key=order)

    def suits(self, at: int, vm: Vm) -> bool:
        """Whether a core type has a pCPU with time left for each vCPU of an instance."""
        ids = {p for p in self.of_type[at] if self.has_time[p]}
        return len(vm) <= len(ids) and all(v.allowed & ids for v in vm)


@dataclass(frozen=True, slots=True)
class IntegratedPolicy:
    """Instances together on one core type, cores evenly loaded."""

    mu: float = 0.6
    """Weight of an instance's size in the utility factor; the load of the cores has 1 - mu."""
    threshold: float = 0.3
    """Greatest utility factor at which an instance goes to fast cores."""
    name: str = "integrated"

    def __post_init__(self) -> None:
        ratio("mu", self.mu)
        at_least("threshold", self.threshold, 0.0)

    def decide(self, view: HostView) -> Decision:
        """Keep instances on their core type, even out loads, and let idle cores take vCPUs.

        The memory is the position of the core type of each instance; ``None``: any.
        """
        instances = by_instance(shared_capacity(view))
        if not view.asymmetric or not instances:
            return Decision({}, view.memory)
        names = {v.key[0] for v in view.vcpus}
        home = dict(view.memory) if isinstance(view.memory, dict) else {}
        cores = _FilledCores(view, instances)
        full = {at for at, ids in enumerate(cores.of_type) if not any(map(cores.has_time.get, ids))}
        if home.keys() != names or full & set(home.values()):
            home = self.first_places(view)[0]
        _place_at_home(cores, instances, home)
        vcpus = {v.key: v for vm in instances.values() for v in vm}
        for ids in cores.of_type:
            _even_out(cores, vcpus, ids)
        idle = [p for ids in reversed(cores.of_type) for p in ids if not cores.count(p)]
        _steal(cores, vcpus, home, [p for p in idle if cores.has_time[p]])
        places = _affinities(view, vcpus, cores.on)
        return Decision(places, home)

    def first_places(self, view: HostView) -> tuple[dict[str, int | None], dict[VcpuKey, int]]:
        """Algorithm 1: the core type of each instance, and the first pCPU of each vCPU."""
        instances: dict[str, list[VcpuView]] = {}
        for vcpu in sorted(view.vcpus, key=lambda v: v.key):
            instances.setdefault(vcpu.key[0], []).append(vcpu)
        cores = _FilledCores(view, instances)
        home: dict[str, int | None] = {}
        for name, vm in instances.items():
            home[name] = self._home(cores, vm)
            for vcpu in vm:
                pcpu = cores.least_loaded(vcpu, home[name])
                if pcpu is not None:
                    cores.put(vcpu.key, pcpu)
        return home, cores.on

    def _home(self, cores: _FilledCores, vm: Vm) -> int | None:
        if len(vm) > sum(len(ids) for ids in cores.of_type[:-1]):
            return None
        fits = [at for at in range(len(cores.of_type)) if cores.suits(at, vm)]
        for at in reversed(fits):
            slower = [p for ids in cores.of_type[:at] for p in ids]
            if not slower:
                return at
            demand = max(0, len(vm) - len(cores.of_type[at])) / len(slower)
            load = max(0.0, cores.mean_load(cores.of_type[at]) - cores.mean_load(slower))
            if self.mu * demand + (1.0 - self.mu) * load <= self.threshold:
                return at
        return fits[0] if fits else None


def _place_at_home(
    cores: _FilledCores, instances: Mapping[str, Vm], home: Mapping[str, int | None]
) -> None:
    """Put vCPUs on their instance's core type: on their own pCPU, else on the least loaded."""
    others = []
    for name, vm in instances.items():
        at_home = set(cores.pcpus(home[name]))
        for vcpu in vm:
            now = next(iter(vcpu.pcpus)) if len(vcpu.pcpus) == 1 else None
            if now in at_home and now in vcpu.allowed and not cores.there[now][name]:
                cores.put(vcpu.key, now)
            else:
                others.append(vcpu)
    for vcpu in others:
        pcpu = cores.least_loaded(vcpu, home[vcpu.key[0]])
        pcpu = cores.least_loaded(vcpu, None) if pcpu is None else pcpu
        if pcpu is not None:
            cores.put(vcpu.key, pcpu)


def _even_out(cores: _FilledCores, vcpus: Mapping[VcpuKey, VcpuView], ids: Sequence[int]) -> None:
    """Move vCPUs within a core type while that lowers the greater of the two loads."""
    for _ in vcpus:
        source = max(ids, key=lambda p: (cores.load[p], p), default=None)
        if source is None or cores.count(source) < 2:
            return
        moves = [
            (cores.load[p] + cores.weight[key] / cores.speed[p], p, key)
            for key in sorted(cores.members[source])
            for p in ids
            if p in vcpus[key].allowed and not cores.beside(key, p)
        ]
        becomes, target, key = min(moves, default=(float("inf"), source, ("", 0)))
        if becomes >= cores.load[source] - _NOISE:
            return
        cores.put(key, target)


def _steal(
    cores: _FilledCores,
    vcpus: Mapping[VcpuKey, VcpuView],
    home: Mapping[str, int | None],
    idle: Sequence[int],
) -> None:
    """Give each idle core a vCPU that shares another core.

    vCPUs of instances without a home core type come first, then those of the largest
    instances, which are spread over core types anyway.
    """
    size = Counter(key[0] for key in vcpus)

    def order(key: VcpuKey) -> tuple[bool, int]:
        return home[key[0]] is not None, -size[key[0]]

    shared = {
        p: sorted(members, key=lambda k: (order(k), k))
        for p, members in cores.members.items()
        if idle and len(members) > 1
    }
    for pcpu in idle:
        waiting = []
        for source, keys in shared.items():
            if cores.count(source) > 1:
                able = (k for k in keys if pcpu in vcpus[k].allowed and not cores.beside(k, pcpu))
                if (key := next(able, None)) is not None:
                    waiting.append((order(key), -cores.load[source], key))
        if waiting:
            key = min(waiting)[-1]
            shared[cores.on[key]].remove(key)
            cores.put(key, pcpu)


def _affinities(
    view: HostView, vcpus: Mapping[VcpuKey, VcpuView], on: Mapping[VcpuKey, int]
) -> Places:
    """The pCPU of each vCPU alone; all those of its core type if the type has bookings.

    The kernel moves booked vCPUs among these, so others must be free to get out of their way.
    """
    of_type: dict[int, frozenset[int]] = {}
    for core_type in view.topology.core_types:
        ids = view.topology.pcpus_of(core_type.name)
        if ids & view.booked or any(view.free_cores.get(p, 0.0) < 1.0 - _NOISE for p in ids):
            of_type |= dict.fromkeys(ids, ids)
    return {
        k: (p in of_type and of_type[p] & vcpus[k].allowed) or frozenset({p}) for k, p in on.items()
    }
