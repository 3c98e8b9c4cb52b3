# SPDX-License-Identifier: Apache-2.0
"""Simulates the arrivals and departures of a cloud's instances, and places each as Nova would.

Arrivals are Poisson and lifetimes exponential. Some hosts with enough vCPUs left are chosen at
random. Those of them that the booking fits are scored, and the one with the greatest gain is taken:
the capacity filter and the efficiency weigher without Nova. Every host packs its bookings anew
after each change. What happens within a host is not simulated: bookings are kept, and best-effort
instances share what is left by the host's policy.
"""

import heapq
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from amp_nova.flavor.extra_specs import best_effort
from amp_nova.model.topology import Topology
from amp_nova.scheduling import demands, host_fit, placement_score
from amp_nova.scheduling.placement_score import NewInstance
from amp_nova_lab.cloud.host import RESERVE_RATIO, CloudFlavor, CloudHost

NOTHING_BOOKED = demands.request_of(best_effort(1))
SAMPLE_S = 3600.0
"""Interval at which throughput and bookings are added up."""


@dataclass(frozen=True, slots=True)
class SimulatedCloud:
    """Hosts, and arrivals that give ``instances_per_host`` on average if none is refused.

    ``vcpus_ratio``: most vCPUs per pCPU; ``candidates``: how many hosts are considered;
    ``reserve_ratio``: the share of each host that cannot be booked.
    """

    hosts: Sequence[Topology]
    flavors: Sequence[CloudFlavor]
    instances_per_host: float
    lifetime_s: float
    vcpus_ratio: float = 4.0
    candidates: int = 100
    reserve_ratio: float = RESERVE_RATIO


@dataclass(frozen=True, slots=True)
class CloudSample:
    """The cloud at one time: what is booked, and what best-effort vCPUs get, in reference cores.

    The latter is what schedulers estimate: on a host with one core type the gain from faster cores
    cannot be measured, and counts as medium. ``unplaced``: how many admitted vCPUs have no place on
    their host.
    """

    at_s: float
    instances: int
    booked_refcores: float
    best_effort_refcores: float
    unplaced: int


@dataclass(frozen=True, slots=True)
class CloudResult:
    """What happened to all arrivals, and what the cloud did every hour."""

    arrived: int
    refused: int
    bookable_refcores: float
    samples: tuple[CloudSample, ...]


def run(
    cloud: SimulatedCloud,
    duration_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _at_s: None,
) -> CloudResult:
    """Start with as many arrivals as are alive on average, and go on for ``duration_s``.

    ``progress`` is called with the time of every sample.
    """
    return _Run(cloud, seed).until(duration_s, progress)


class _Run:
    def __init__(self, cloud: SimulatedCloud, seed: int) -> None:
        self._cloud = cloud
        self._hosts = [
            CloudHost(f"host{n}", topology, cloud.reserve_ratio)
            for n, topology in enumerate(cloud.hosts)
        ]
        self._chance = random.Random(f"{seed} cloud")
        self._ends: list[tuple[float, int, CloudHost]] = []
        self._arrived = self._refused = 0

    def until(self, duration_s: float, progress: Callable[[float], None]) -> CloudResult:
        samples = []
        due_s = SAMPLE_S
        for at_s in self._arrivals(duration_s):
            while due_s <= min(at_s, duration_s):
                self._end_until(due_s)
                samples.append(self._sample(due_s))
                progress(due_s)
                due_s += SAMPLE_S
            self._end_until(at_s)
            if at_s < duration_s:
                self._arrive(at_s)
        bookable = sum(h.bookable_refcores for h in self._hosts)
        return CloudResult(self._arrived, self._refused, bookable, tuple(samples))

    def _arrivals(self, duration_s: float) -> Iterator[float]:
        """When instances arrive; the last one is the end."""
        alive = len(self._hosts) * self._cloud.instances_per_host
        yield from (0.0 for _ in range(round(alive)))
        at_s, per_s = 0.0, alive / self._cloud.lifetime_s
        while (at_s := at_s + self._chance.expovariate(per_s)) < duration_s:
            yield at_s
        yield duration_s

    def _end_until(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, number, host = heapq.heappop(self._ends)
            host.remove(str(number))

    def _arrive(self, now_s: float) -> None:
        flavors = self._cloud.flavors
        (flavor,) = self._chance.choices(flavors, [f.share for f in flavors])
        lives_s = self._chance.expovariate(1.0 / self._cloud.lifetime_s)
        self._arrived += 1
        host = self._place(flavor)
        if host is None:
            self._refused += 1
            return
        host.add(str(self._arrived), flavor)
        heapq.heappush(self._ends, (now_s + lives_s, self._arrived, host))

    def _place(self, flavor: CloudFlavor) -> CloudHost | None:
        """The host where an instance adds most to the cloud's throughput; ``None`` if none fits."""
        vcpus, ratio = len(flavor.booking.vcpus), self._cloud.vcpus_ratio
        able = [h for h in self._hosts if h.vcpus + vcpus <= len(h.report.bookable) * ratio]
        able = self._chance.sample(able, min(len(able), self._cloud.candidates))
        query = _Query(flavor)
        return max((h for h in able if query.fits(h)), key=query.score, default=None)

    def _sample(self, at_s: float) -> CloudSample:
        booked = sum(d.refcores for h in self._hosts for d in demands.demands_on(h.report))
        return CloudSample(
            at_s,
            len(self._ends),
            booked,
            sum(h.best_effort_refcores for h in self._hosts),
            sum(h.unplaced for h in self._hosts),
        )


def fits(host: CloudHost, flavor: CloudFlavor) -> bool:
    """Whether what a flavor books fits a host."""
    return _Query(flavor).fits(host)


class _Query:
    """One instance to be placed."""

    def __init__(self, flavor: CloudFlavor) -> None:
        self._flavor = flavor
        self._request = demands.request_of(flavor.booking)

    def fits(self, host: CloudHost) -> bool:
        """Whether what it books fits a host."""
        if self._request == NOTHING_BOOKED:
            return True
        name = self._flavor.name
        if name not in host.fits:
            host.fits[name] = host_fit.fit(host.capacity, self._request)
        return host.fits[name].refused is None

    def score(self, host: CloudHost) -> tuple[float, float]:
        """The score of a host that the instance fits; scores compare by gain first."""
        name = self._flavor.name
        if name not in host.scores:
            booking = self._flavor.booking
            booked = tuple(d.refcores for d in demands.demands_of(self._request, host.report))
            free_vcpus = len(booking.vcpus) - len(self._request.vcpus)
            new = NewInstance(free_vcpus, booked, self._flavor.sensitivity)
            fit = host.fits.get(name)
            core_types = fit.core_types if fit else ()
            host.scores[name] = placement_score.score(host.demand, new, core_types)
        return host.scores[name]
