# SPDX-License-Identifier: Apache-2.0
"""kwon2011, sections 2.3 and 4.4: how guests gain from more fast cores."""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from amp_nova_lab.reproduce.experiment import (
    Machine,
    Published,
    Row,
    at_least,
    at_most,
    fitted,
    guest,
    identity,
    percent,
    run,
    run_slots,
    scenario,
    speeds,
    steady,
)
from amp_nova_lab.reproduce.kwon2011_mixes import CLOCKS, END, FROM_FIGURE_8, MULTI, Mixes

SLOWEST = identity("threads of equal work that stay on their cores end with the slowest one")
ALONE = identity("as many vCPUs as cores: none waits, so none moves")
PINNED = identity("each vCPU stays on its core")
PINNED_ORDER = (
    "guests are pinned in the order of table 1, so the first one, freqmine, has the fast cores and "
    "not swaptions, which ranks higher; the paper does not say who has them"
)
SAME_SHARES = "in a guest that is alone all vCPUs have the same share of fast cores under both"
EQUAL_THREADS = "threads have equal work and join at the end; speedup 1.85"
STILL = "vCPUs that score alike change places only while their IPC differs by core type"


@cache
def _gained(policy: str, fast: int, speedup: float, seed: int = 0) -> float:
    """Part of the all-fast gain that one program with twelve threads reaches, in percent."""
    slots = policy == "credit"
    work_ref_s = 5.0 if slots else 60.0
    guests = [guest("all", steady(speedup, work_ref_s), 12)]
    made = scenario(Machine(fast, 12 - fast, CLOCKS, caches=2), guests, 1.25 * work_ref_s)
    ended = (run_slots if slots else run)(replace(made, seed=seed), policy)
    return percent(speeds(ended)["all"]) / percent(speedup) * 100.0


def figure_6(mixes: Mixes) -> Iterator[Row]:
    """One guest of twelve pinned vCPUs."""
    few = at_most(50.0, "%", text="high only if all cores are fast")
    for fast in (4, 8, 10):
        what = f"part of the all-fast gain, pinned, {fast} fast cores"
        ours = _gained(mixes.runs("pinned"), fast, mixes.speedup("swaptions"))
        yield Row(what, few, ours, "%", (EQUAL_THREADS,), kind=SLOWEST)


def figure_12(mixes: Mixes) -> Iterator[Row]:
    """The same guest under the schedulers."""
    cores, ours, speedup = (6, 8, 10), {}, mixes.speedup("swaptions")
    for fast in cores:
        for policy in ("credit", "amp-fair", "amp-vm", "amp-vcpu"):
            seed = mixes.seed if policy == "credit" else 0
            ours[policy, fast] = _gained(mixes.runs(policy), fast, speedup, seed)
    what, assumed = "part of the all-fast gain", (EQUAL_THREADS,)
    for fast in cores:
        low, part = at_most(10.0, "%", text="as low as pinned"), ours["credit", fast]
        yield Row(f"{what}, credit, {fast} fast cores", low, part, "%", assumed, kind=ALONE)
    for policy in ("amp-fair", "amp-vm"):
        for fast in cores:
            better, part = at_least(40.0, "%", text="much better than pinned"), ours[policy, fast]
            yield Row(f"{what}, {policy}, {fast} fast cores", better, part, "%", assumed)
    for fast in cores:
        similar = Published("similar to amp-vm", -10.0, 10.0)
        less = ours["amp-vcpu", fast] - ours["amp-vm", fast]
        named = f"{what}, amp-vcpu less amp-vm, {fast} fast cores"
        yield Row(named, similar, less, "points", assumed, STILL)
    slightly = Published("slightly better", 0.5, 10.0)
    for policy, cause in (("amp-vm", SAME_SHARES), ("amp-vcpu", STILL)):
        more = statistics.mean(ours[policy, fast] - ours["amp-fair", fast] for fast in cores)
        named = f"{what}, {policy} less amp-fair, mean"
        yield Row(named, slightly, more, "points", assumed, cause)


def figure_13(mixes: Mixes) -> Iterator[Row]:
    """When the first and the second guest of a mix get faster with more fast cores."""

    def part(mix: str, policy: str, fast: int, program: str) -> float:
        """Part of a program's all-fast gain, in percent."""
        speed, slow = (mixes.speeds_of(mix, policy, f)[f"{program}-0"] for f in (fast, 0))
        return percent(speed / slow) / percent(mixes.speedup(program)) * 100.0

    for mix, (first, second) in {
        "1H-1M-1L": ("freqmine", "pmake"),
        "2H-1M": ("swaptions", "freqmine"),
        "1M-2L": ("pmake", "apache"),
        "1H-1L": ("freqmine", "canneal"),
    }.items():
        vcpus = MULTI[mix][0]
        few, some, many = vcpus, vcpus * 3 // 2, vcpus * 2
        what = f"{mix}, part of the all-fast gain"
        for policy in ("pinned", "amp-vm"):
            kind = PINNED if policy == "pinned" else None
            improved, ours = (
                at_least(90.0, "%", text="improves first"),
                part(mix, policy, few, first),
            )
            named = f"{what}: {first}, {policy}, {few} fast cores"
            yield Row(named, improved, ours, "%", END, PINNED_ORDER, kind)
            more = at_least(25.0, "points", text="improves beyond six")
            ours = part(mix, policy, many, second) - part(mix, policy, few, second)
            named = f"{what}: {second}, {policy}, {many} fast cores less {few}"
            yield Row(named, more, ours, "points", END, PINNED_ORDER, kind)
        higher = at_least(25.0, "points", text="much higher")
        ours = part(mix, "amp-vm", some, second) - part(mix, "pinned", some, second)
        named = f"{what}: {second}, {some} fast cores, amp-vm less pinned"
        yield Row(named, higher, ours, "points", END, PINNED_ORDER)


def figure_14(mixes: Mixes) -> Iterator[Row]:
    """What amp-vm gains over amp-fair, by the number of fast cores."""
    same, gain = Published("almost 0", -1.0, 1.0), at_least(5.0, "%", text="takes advantage")
    chosen = fitted("speedup of freqmine, from figure 8")
    for fast in (0, 2, 4, 6, 8, 12):
        amp_vm, fair = (speeds(mixes.run("1H-1M-1L", p, fast)) for p in ("amp-vm", "amp-fair"))
        name = "freqmine-0"
        published = same if fast in (0, 12) else gain
        if fast == 8:
            published = Published("decreases rapidly", 0.0, 25.0)
        what = f"1H-1M-1L, {fast} fast cores: freqmine, amp-vm against amp-fair"
        ours = percent(amp_vm[name] / fair[name])
        yield Row(what, published, ours, "%", (FROM_FIGURE_8,), kind=chosen if fast == 4 else None)
