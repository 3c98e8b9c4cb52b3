# SPDX-License-Identifier: Apache-2.0
"""Estimates from cycle to cycle: windows, own coefficients in force, and who goes by them."""

from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop, LoopSettings
from amp_nova.agent.state.policy_runner import PolicySettings
from amp_nova.control.context import Terms
from amp_nova.hardware.calibration import Reference, summarise
from amp_nova.host.calibration.kernels import INTEGER, MEMORY
from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.policies.hsp import HspPolicy
from amp_nova.profiling.profiles import ProfileSettings
from amp_nova_lab.counters import Counting, rates
from amp_nova_lab.host import SimHost
from tests.support.calibrations import sample
from tests.unit.lab.builders import guest, topology

FAST, SLOW = frozenset({0, 1}), frozenset({2, 3})
ADAPTIVE = LoopSettings(adaptive=True)


def calibrated(coefficient, fast=2, slow=2):
    """A host that was calibrated, with a memory kernel that gains a tenth of what it could."""
    made = topology(fast, slow, coefficient)
    gain = 1.0 + 0.1 * (coefficient - 1.0)
    samples = []
    for core_type, of in zip(made.core_types, rates(made, (1.0, gain), {}), strict=True):
        counted = {"clock_hz": of.cycles, "misses_per_cpu_s": of.cache_misses}
        samples.append(sample(core_type.name, core_type.coefficient))
        samples.append(sample(core_type.name, of.instructions, kernel="memory", **counted))
    pcpus = {t.name: tuple(made.pcpus_of(t.name)) for t in made.core_types}
    found = summarise(samples, pcpus, (INTEGER, MEMORY), Reference("slow", tuple(samples)))
    costs = {t.name: t.miss_cycles.value for t in found}
    types = tuple(replace(t, miss_cycles=costs[t.name]) for t in made.core_types)
    return replace(made, core_types=types)


def hosted(*guests, coefficient=2.0, settings=ADAPTIVE, **counting):
    host = SimHost(calibrated(coefficient), guests, counting=Counting(**counting))
    return host, Loop(host, host, settings, stopwatch=lambda: 0.0)


def cycles(host, loop, count, every_s=1.0):
    """So many cycles; the last report."""
    for _ in range(count):
        report = loop.cycle()
        host.advance(host.now_s + every_s)
    return report


def moved(pcpus):
    """A move by somebody else."""
    return Changes((Change(("vm", 0), (Step(pcpus=pcpus),)),))


def quota(report, name="vm"):
    (domain,) = (d for d in report.domains if d.domain.name == name)
    return domain.vcpus[0].reading.bandwidth.cores


def test_the_quota_follows_what_the_work_gains_and_so_does_the_account():
    """After one window on the fast type the share is booked / own coefficient, not / 2.

    Reference seconds are CPU seconds times the coefficient of that very time.
    """
    host, loop = hosted(guest(speed=1.2, core_type="fast", pref_core="0.5"))

    begun, known = cycles(host, loop, 2), cycles(host, loop, 19)

    assert quota(begun) == pytest.approx(0.25)
    assert quota(known) == pytest.approx(0.5 / 1.2, rel=0.02)
    (line,) = {v.entitlement.reason for d in known.domains for v in d.vcpus}
    assert "its own coefficient" in line
    account = known.domains[0].vcpus[0].account
    assert account.ref_s == pytest.approx(20 * 0.5, rel=0.01)
    assert account.cpu_s[1] == pytest.approx(2 * 0.25 + 18 * 0.5 / 1.2, rel=0.02)
    assert account.last.ratio == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("flavor", [None, "fixed", "adaptive"])
def test_the_flavor_says_who_goes_by_its_own_else_the_operator(adaptive, flavor):
    """By default nobody."""
    specs = {} if flavor is None else {"coefficient": flavor}
    host, loop = hosted(
        guest(speed=1.2, start_on="fast", pref_core="0.5", **specs),
        settings=LoopSettings(adaptive=adaptive),
    )

    expected = adaptive if flavor is None else flavor == "adaptive"
    assert (quota(cycles(host, loop, 5)) > 0.3) is expected


@pytest.mark.parametrize(("neighbours", "off"), [(0, 0.0), (2, 0.4)])
def test_a_trial_on_the_reference_core_type_measures_what_no_model_knows(neighbours, off):
    """If there is room, the second window is there; without, the estimate is as good as a model's.

    The host was not calibrated, so nothing tells that the work waits for memory.
    """
    guests = [guest(speed=1.1, start_on="fast", pref_core="0.5")]
    guests += [guest(f"g{i}", start_on="slow", pref_core="0.9") for i in range(neighbours)]
    host = SimHost(topology(1, 2, 3.0), guests)
    loop = Loop(host, host, ADAPTIVE, stopwatch=lambda: 0.0)
    cycles(host, loop, 5)
    before = host.meters("vm")[0].progress_ref_s

    cycles(host, loop, 20)

    booked = 20 * 0.5
    assert host.meters("vm")[0].progress_ref_s - before == pytest.approx(
        booked * (1.0 - off), rel=0.02 if not off else 0.2
    )


@pytest.mark.parametrize("coefficient", [1.5, 2.375, 4.7])
@pytest.mark.parametrize("gain", [0.05, 0.2, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("on", ["slow", "fast"])
def test_after_a_calibration_one_core_type_is_enough(coefficient, gain, on):
    """Within 10 % of what the work gains, after one window on one type, with noisy counters."""
    truth = 1.0 + gain * (coefficient - 1.0)
    off = {}
    for known in (True, False):
        made = calibrated(coefficient) if known else topology(2, 2, coefficient)
        guests = [guest(speed=truth, core_type=on, pref_core="0.5")]
        host = SimHost(made, guests, counting=Counting(noise_ratio=0.02))
        report = cycles(host, Loop(host, host, ADAPTIVE, stopwatch=lambda: 0.0), 5)
        found = report.domains[0].vcpus[0].profile.coefficients["fast"]
        off[known] = abs(found / truth - 1.0)

    assert off[True] < 0.1
    if on == "fast" and gain < 0.3 and coefficient > 2.0:
        assert off[False] > 0.2


@pytest.mark.parametrize("seed", range(2))
def test_noise_writes_no_quotas(seed):
    """Counters that are 3 % off from reading to reading: two writes in ten minutes at the most."""
    host, loop = hosted(
        guest(speed=1.3, start_on="fast", pref_core="0.5"), noise_ratio=0.03, seed=seed
    )
    begun = cycles(host, loop, 60).totals.writes

    assert cycles(host, loop, 600).totals.writes - begun <= 2


@pytest.mark.parametrize(
    ("turns", "stays", "known"),
    [(1, 6, (pytest.approx(1.4, rel=1e-6), "sampling")), (4, 2, None)],
    ids=["on both types", "never for a whole window"],
)
def test_who_ran_on_both_types_is_known_without_a_model(turns, stays, known):
    """Moved there by others, not by the estimator, which moves nobody to measure it.

    What ran on both types within one window is no rate of either.
    """
    host, loop = hosted(guest(speed=1.4), settings=LoopSettings())
    for where in (SLOW, FAST) * turns:
        host.apply(moved(where))
        report = cycles(host, loop, stays)

    found = report.domains[0].vcpus[0].profile.speedup
    assert (found and (found.value, found.source)) == known
    assert report.totals.migrations == {}


def test_without_counters_everything_is_as_the_hardware_says():
    """Nothing is guessed: no estimate, and the type's own coefficient."""
    host, loop = hosted(guest(speed=1.2, start_on="fast", pref_core="0.5"), works=False)
    report = cycles(host, loop, 6)

    assert report.domains[0].vcpus[0].profile.speedup is None
    assert quota(report) == pytest.approx(0.25)


def test_a_policy_sees_ipc_speedup_and_where_time_was_spent():
    """Per best-effort vCPU: smoothed IPC, speed-up, CPU seconds by type since the last decision."""
    views = []

    class Watching:
        name = "watching"

        def decide(self, view):
            views.append(view.vcpus[0])
            return {}

    host = SimHost(calibrated(2.0, 1, 1), [guest(speed=1.5)])
    host.apply(moved(frozenset({0})))
    loop = Loop(host, host, LoopSettings(), Watching(), stopwatch=lambda: 0.0)
    cycles(host, loop, 11, every_s=0.5)

    assert views[0].ipc is None
    assert views[-1].ipc == pytest.approx(host_ipc(host))
    assert views[-1].speedup == pytest.approx(1.5, rel=0.01)
    assert views[-1].cpu_s == (0.0, pytest.approx(2.5))


@pytest.mark.parametrize("interval_s", [0.5, 1.0, 2.5])
def test_turns_are_not_too_short_to_learn_from(interval_s):
    """However often a policy is asked: it sees what those gain that change places each time."""
    guests = [guest("gains", speed=1.9), guest("waits", speed=1.1)]
    host = SimHost(calibrated(2.0, 1, 1), guests)
    settings = LoopSettings(
        Terms(cycle_s=0.5),
        profiles=ProfileSettings(interval_s=interval_s),
        policy=PolicySettings(interval_s),
    )
    loop = Loop(host, host, settings, HspPolicy(), stopwatch=lambda: 0.0)
    cycles(host, loop, 40, every_s=0.5)

    moves = [c for _ in range(20) for c in cycles(host, loop, 1, every_s=0.5).changes.vcpus]

    (gains, _) = host.observe().domains
    assert moves == []
    assert gains.vcpus[0].pcpus == {0}


def host_ipc(host):
    counts = host.observe().domains[0].vcpus[0].counts
    return counts.instructions / counts.cycles
