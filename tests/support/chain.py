# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a host's report to the order of all hosts, through Nova's filter and weighers.

A cloud of four hosts and one that reports whatever it is told to. However often and whatever that
host reports, no request fails, every weight is a finite number, and the others are passed and
ordered as if it were not there. What a report costs is measured; see ``Cost``.
"""

import argparse
import gc
import heapq
import json
import logging
import math
import random
import statistics
import time
import tracemalloc
import uuid
from dataclasses import dataclass, field
from itertools import chain

import nova.tests.functional  # noqa: F401 - chooses Nova's concurrency mode
from nova import objects
from nova.scheduler import filters, weights
from nova.scheduler.host_manager import HostState
from nova.scheduler.weights.cpu import CPUWeigher
from nova.scheduler.weights.disk import DiskWeigher
from nova.scheduler.weights.ram import RAMWeigher

from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Placement
from amp_nova.nova_plugins.weights import AmpEfficiencyWeigher, AmpScalabilityWeigher
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.support import hosts
from tests.support.host_reports import NOW_S, host_report, instance
from tests.support.nova_requests import flavor, request_spec
from tests.support.scheduler import alone
from tests.support.wrong_documents import atom, mutated, places, put

objects.register_all()
LIAR = "liar"
CPU_S_MAX, BYTES_MAX = 0.010, 1 << 20
"""What one report may cost a scheduler."""
CPU_SLACK = 5.0
"""Measured CPU time varies by as much on a machine that others use, too."""
REQUESTS = 2
"""Kinds of requests after each report of a random sequence."""
REPEATS, SUSPECTS = 7, 10
IMAGE, FLAVOR, MOVED = "image", "flavor", str(uuid.UUID(int=7))
"""Of the requests. ``MOVED`` is an instance that is on a host already, perhaps on the liar."""
TYPES = (
    {"slow": (4, 1.0)},
    {"slow": (4, 1.0), "fast": (4, 2.0)},
    {"fast": (6, 1.6)},
    {"slow": (2, 0.8), "middle": (2, 1.3), "fast": (4, 2.4)},
)
SPECS = (
    ({}, 1),
    ({}, 4),
    ({"amp:pref_core": "0.5"}, 2),
    ({"amp:pref_core.0": "0.5", "amp:pref_core.1": "1.2"}, 3),
    ({"amp:ips": "1G"}, 1),
    ({"amp:core_type": "fast"}, 1),
    ({"amp:efficiency": "high"}, 2),
    ({"amp:efficiency": "1.7"}, 1),
    ({"amp:weight": "3"}, 2),
    ({"amp:pref_core": "64"}, 1),
)
ALL = range(len(SPECS))
NODES = (LIAR, *(f"host{number}" for number in range(len(TYPES))))
"""The hosts that Nova has."""


def measured(resource, sensitivity, types):
    """A best-effort instance of the requests' flavor and image, with a measured speedup."""
    coefficients = [coefficient for _, coefficient in types.values()]
    slow, fast = (1.0 + sensitivity * (c - 1.0) for c in (min(coefficients), max(coefficients)))
    said = Speedup(fast / slow, 0.05)
    some = (ReportedVcpu(i, None, None, "0-1", None, None, 0.9, said) for i in range(2))
    return ReportedInstance(resource, tuple(some), flavor=FLAVOR, image=IMAGE)


def seeds():
    """Reports of the liar that are valid: of several kinds of host, with and without guests."""
    bare = hosts.topology({"slow": (2, None), "fast": (2, None)})
    booked = instance("a", (0.5, 0), on={}, flavor=FLAVOR)
    made = []
    for types in TYPES:
        present = booked, measured("b", 0.2, types), measured(MOVED, 0.9, types)
        topology = hosts.topology(types)
        made.append(host_report(*present, node=LIAR, topology=topology))
    return [json.loads(encode(r)) for r in (*made, host_report(node=LIAR, topology=bare))]


@dataclass
class Cost:
    """The most that one report took, and what was seen in all."""

    reports: int = 0
    accepted: int = 0
    requests: int = 0
    dearest: list[tuple[float, str]] = field(default_factory=list, repr=False)
    longest: list[tuple[int, str]] = field(default_factory=list, repr=False)
    """The accepted ones that took most CPU time, and the longest: measured again at the end."""


class Cloud:
    """The hosts, and a scheduler that knows what they reported."""

    def __init__(self):
        report_server.CONF([], default_config_files=[])
        self.cost, self._now_s = Cost(), NOW_S
        report_server._shared = server = report_server.ReportServer(
            HostStates(report_server.CONF, self._now, frozenset(NODES).__contains__), Placement()
        )
        alone(server)
        self.states = server.states
        # Nova's others weigh nothing that is different here.
        ours = AmpEfficiencyWeigher, AmpScalabilityWeigher
        self.weighers = [w() for w in (*ours, CPUWeigher, RAMWeigher, DiskWeigher)]
        self._filter = AmpCapacityFilter()
        self._others = [self._host(f"host{n}", n) for n in range(len(TYPES))]
        self._liar = self._host(LIAR, 1.5)  # Nova's weighers normalise: it has neither extreme
        for number, types in enumerate(TYPES):
            there = (instance("a", (0.5, 0), on={}), measured(f"b{number}", 0.3, types))
            seen = host_report(*there, node=f"host{number}", topology=hosts.topology(types))
            assert self.states.accept(encode(seen))
        self._requests = [_request(*each) for each in SPECS]
        self._undisturbed = [self._order(spec) for spec in self._requests]

    def _now(self):
        return self._now_s

    @staticmethod
    def _host(name, rank):
        host = HostState(name, name, uuid.UUID(int=9))
        host.free_ram_mb, host.free_disk_mb = 8192 + int(1024 * rank), 65536
        host.vcpus_total, host.vcpus_used, host.cpu_allocation_ratio = 64, int(4 * rank), 4.0
        host.ram_allocation_ratio = host.disk_allocation_ratio = 1.0
        host.hypervisor_version, host.limits = 1, {}
        return host

    def _order(self, spec, *more):
        """Names and weights of the other hosts, best first, if these hosts are there as well."""
        for host in (*self._others, *more):
            host.allocation_candidates = [{"allocations": {}, "mappings": {"": []}}]
            vars(host).pop("consume_from_request", None)
        passed = filters.HostFilterHandler().get_filtered_objects(
            [self._filter], [*self._others, *more], spec
        )
        ranked = weights.HostWeightHandler().get_weighed_objects(self.weighers, passed, spec)
        assert all(math.isfinite(w.weight) for w in ranked), ranked
        for host in passed:
            if host.nodename == LIAR:
                bool(host.allocation_candidates)  # Nova is about to claim: reserves capacity
        return [w.obj.nodename for w in ranked if w.obj.nodename != LIAR]

    def check(self, texts, which=ALL):
        """The liar sends these reports; after each, requests of some kinds are scheduled."""
        self.states._entries.pop(LIAR, None)
        self._now_s = NOW_S  # the others' reports are as new as at first
        for text in texts:
            self._now_s += 1.0
            self._accept(text)
            for index in which:
                self.cost.requests += 1
                found = self._order(self._requests[index], self._liar)
                assert found == self._undisturbed[index], (SPECS[index], found)

    def _accept(self, text):
        began = time.process_time()
        accepted = self.states.accept(text)
        took_s = time.process_time() - began
        self.cost.reports += 1
        self.cost.accepted += accepted
        if accepted:
            self.cost.dearest = heapq.nlargest(SUSPECTS, [*self.cost.dearest, (took_s, text)])
            self.cost.longest = heapq.nlargest(SUSPECTS, [*self.cost.longest, (len(text), text)])

    def measure(self, text):
        """What a report by itself takes: the median CPU seconds, and the most bytes."""
        took = []
        for _ in range(REPEATS):
            self.states._entries.pop(LIAR, None)
            gc.collect()
            began = time.process_time()
            self.states.accept(text)
            took.append(time.process_time() - began)
        self.states._entries.pop(LIAR, None)
        gc.collect()
        tracemalloc.start()
        try:
            self.states.accept(text)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            self.states._entries.pop(LIAR, None)
        return statistics.median(took), peak

    def check_cost(self, text):
        """A report is within the budgets: memory, which is exact, and CPU time, with slack."""
        cpu_s, peak = self.measure(text)
        assert peak <= BYTES_MAX, f"{peak} bytes: {text[:500]}"
        assert cpu_s <= CPU_S_MAX * CPU_SLACK, f"{cpu_s * 1e3:.1f} ms: {text[:500]}"
        return cpu_s, peak


def _request(specs, vcpus):
    image = objects.ImageMeta(id=IMAGE, properties=objects.ImageMetaProps())
    wanted = flavor(specs, vcpus, flavorid=FLAVOR)
    return request_spec(wanted, instance_uuid=MOVED, image=image)


EXTREMES = (0, 1e-6, 1e-3, 0.02, 1 / 3, 1.0, 1.5, 7, 1e3, 1e15, 1e18, None)


def _extreme_vcpu(index, rng, names):
    speedup = rng.choice((None, [rng.choice(EXTREMES[1:-1])]))
    refcores, ips = rng.choice(
        ((None, None), (rng.choice(EXTREMES[1:]), None), (None, rng.choice(EXTREMES[1:])))
    )
    pcpu = rng.choice((None, 0, index % 8, 8191))
    cpus = rng.choice(("", "0", "0-1", "1-3", "0-7", "5-5,7", "8191"))
    core_type = rng.choice((*names, None))
    return [index, refcores, ips, cpus, core_type, pcpu, rng.choice(EXTREMES), speedup]


def extreme(rng, sequence):
    """A report that is valid, or nearly, with values at their bounds."""
    names = [f"t{n}" for n in range(rng.choice((1, 1, 2, 2, 2, 3, 6)))]
    types = []
    for at, name in enumerate(names):
        first = 4 * at
        found = {"name": name, "pcpus": rng.choice((f"{first}-{first + 3}", str(first), ""))}
        found["coefficient"] = rng.choice((1e-3, 0.5, 1.0, 1.0 + at, 1e3, None))
        found["nominal_ips"] = rng.choice((1e3, 1e9, 1e15, None))
        if rng.random() < 0.3:
            found["smt_busy_factor"] = rng.choice((0, 0.3, 1, 10))
            found["siblings"] = [f"{first}-{first + 1}"]
        types.append(found)
    instances = [
        [
            rng.choice((MOVED, f"i{n}")) if n == 0 else f"i{n}",
            [_extreme_vcpu(i, rng, names) for i in range(rng.choice((0, 1, 1, 2, 2, 4, 8)))],
            rng.choice((None, *names)),
            rng.choice((1.0, 1.0, 1e-6, 1e18, 3)),
            rng.choice((None, "high", "low", "none", 0, 1.7, 1e18)),
        ]
        for n in range(rng.choice((0, 1, 2, 3, 5, 12)))
    ]
    return {
        "version": 2,
        "origin": {
            "node": LIAR, "boot_id": rng.choice("abc"), "sequence": sequence, "time_s": 0,
        },
        "topology": {"core_types": types, "reference": "t0"},
        "bookable": rng.choice(("", "0", "0-3", "0-23", "8191")),
        "reserve_ratio": rng.choice((0, 0.1, 0.999, 1)),
        "groups": [[FLAVOR, IMAGE, instances[::2]], ["other", "", instances[1::2]]],
        "healthy": rng.random() < 0.95,
    }  # fmt: skip


def swollen(document, rng):
    """A document with one of its lists a thousand times as long, and strings that differ."""
    lists = [p for p in places(document) if isinstance(_at(document, p), list)]
    path = rng.choice(lists)
    values = _at(document, path) or [atom(rng)]
    times = rng.choice((10, 100, 1000, 5000))
    text = json.dumps(put(document, path, list(chain.from_iterable([values] * times))))
    parts = text.split('"i0"')  # ids of instances differ, or the first check ends it
    return "".join(f'{part}"i0-{n}"' for n, part in enumerate(parts))[:300_000].rpartition('"i0-')[
        0
    ]


def _at(document, path):
    for key in path:
        document = document[key]
    return document


def sequence_of(rng, known):
    """One to three reports: extremes, and valid ones that are changed anywhere."""
    texts = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        document = rng.choice(known) if rng.random() < 0.3 else extreme(rng, number)
        text = json.dumps(document)
        kind = rng.random()
        if kind < 0.35:
            text = mutated(text, rng)
        elif kind < 0.352:
            text = swollen(document, rng)
        texts.append(text)
    return texts


def run(cloud, sequences=math.inf, seconds=math.inf, seed=0):
    """Check sequences of reports with some kinds of requests, for so much CPU time; how many."""
    rng, known, done = random.Random(seed), seeds(), 0
    ends_s = time.process_time() + seconds
    while done < sequences and time.process_time() < ends_s:
        texts = sequence_of(rng, known)
        try:
            cloud.check(texts, rng.sample(ALL, REQUESTS))
        except Exception as exc:
            exc.add_note(f"seed {seed}, sequence {done}: {json.dumps(texts)[:4000]}")
            raise
        done += 1
    return done


def main():
    """Run for some time and print what was seen; a defect raises."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.chain", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of CPU time")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cloud = Cloud()
    done = run(cloud, seconds=arguments.seconds, seed=arguments.seed)
    cost = cloud.cost
    took = [cloud.check_cost(text) for _, text in {*cost.dearest, *cost.longest}]
    print(
        f"seed {arguments.seed}: {done} sequences, {cost.reports} reports, {cost.accepted} of them"
    )
    print(f"accepted, {cost.requests} requests; no exception, no order of other hosts changed")
    print(
        f"dearest report: {max(c for c, _ in took) * 1e3:.2f} ms of CPU time (median of {REPEATS})"
    )
    print(f"largest report: {max(p for _, p in took) / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
