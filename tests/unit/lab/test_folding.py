"""Guests that fold: what is delivered to 4 vCPUs of 0.25 if the guest loads a steal governor.

The governor's rule is in ``amp_nova_lab/programs.py`` (``Spread``). A booking per vCPU is a limit
of each; a booking per instance, which amp-nova does not offer, is one limit of all of them.
"""

import re
from dataclasses import replace

import pytest

from amp_nova.model.allocation import Change, Changes, Step
from amp_nova.model.bandwidth import Bandwidth
from amp_nova_lab.host import SimHost
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.workload import Phase, Threads, Workload
from tests.support.documented import ROOT
from tests.unit.lab.builders import guest, scenario, topology

GOVERNOR = {"steal_high_ratio": 0.05}
COLUMNS = ({}, GOVERNOR, {"steal_high_ratio": 0.9999})
SETTLED_S, END_S = 10, 70


def threads(count, vcpus=4, limit_cores=None, specs=None, **governor):
    """A guest with so many busy threads; ``limit_cores`` of the instance."""
    workload = Workload((Phase((1.0,)),), shared=Threads(count, **governor))
    made = guest(vcpus=vcpus, **(specs or {}))
    return replace(made, workload=workload, limit_cores=limit_cores)


def alone(made, vcpu_cores=None):
    """A host with a reference core for each vCPU, and a limit for each if given."""
    host = SimHost(topology(fast=0, slow=len(made.booking.vcpus)), (made,))
    limit_all(host, made, vcpu_cores)
    return host


def limit_all(host, made, cores):
    bandwidth = None if cores is None else Bandwidth(round(cores * 100_000), 100_000)
    keys = [(made.name, index) for index in range(len(made.booking.vcpus))]
    host.apply(Changes(tuple(Change(key, (Step(bandwidth=bandwidth),)) for key in keys)))


def windows(host, first_s, last_s, window_s=1):
    """What each vCPU got in each window, in reference cores."""
    host.advance(first_s)
    before = [m.progress_ref_s for m in host.meters("vm")]
    found = []
    for at_s in range(first_s + window_s, last_s + 1, window_s):
        host.advance(at_s)
        now = [m.progress_ref_s for m in host.meters("vm")]
        found.append([(b - a) / window_s for a, b in zip(before, now, strict=True)])
        before = now
    return found


def delivered(host):
    """Reference cores of all vCPUs together, once the guest has folded."""
    (mean,) = windows(host, SETTLED_S, END_S, END_S - SETTLED_S)
    return sum(mean)


def used(host, last_s, first_s=0):
    """How many vCPUs ran in each second."""
    return [sum(cores > 0.0 for cores in second) for second in windows(host, first_s, last_s)]


def test_the_tenants_table_is_what_is_delivered():
    """4 vCPUs of 0.25 by busy threads: no governor, the governor, and with its threshold raised."""
    page = (ROOT / "doc/source/user/tenants.rst").read_text()
    rows = re.findall(r"^(\d) +(\d\.\d\d) +(\d\.\d\d) +(\d\.\d\d)$", page, re.MULTILINE)

    found = [
        (f"{busy}", *(f"{delivered(alone(threads(busy, **each), 0.25)):.2f}" for each in COLUMNS))
        for busy in (1, 2, 3, 4)
    ]

    assert rows == found


@pytest.mark.parametrize("busy", [1, 2, 3, 4])
@pytest.mark.parametrize("governor", [{}, GOVERNOR], ids=["stays", "folds"])
def test_a_limit_of_the_instance_of_one_core_reaches_a_guest_that_folds(busy, governor):
    """1 core for 4 vCPUs: all of it with one thread or four, and never more in 3 s."""
    host = alone(threads(busy, limit_cores=1.0, **governor))

    sums = [sum(window) for window in windows(host, 0, 60, 3)]

    assert min(sums) >= 0.97
    assert max(sums) <= 1.01
    if busy == 4 and not governor:
        assert windows(host, 60, 90, 30) == [pytest.approx([0.25] * 4, rel=0.01)]


@pytest.mark.parametrize(
    ("booked", "least", "most"),
    [(0.2, 0.8, 0.8), (0.5, 2.0, 2.0), (0.3, 1.1, 1.1), (0.45, 1.4, 1.6)],
)
def test_a_limit_of_the_instance_between_whole_cores_is_not_all_used(booked, least, most):
    """A guest without steal takes a vCPU back, sees steal and gives it up, again and again."""
    found = delivered(alone(threads(4, limit_cores=4 * booked, **GOVERNOR)))

    assert least - 0.001 <= found <= most + 0.001


@pytest.mark.parametrize(
    ("booked", "high", "left"), [(0.25, 0.76, 4), (0.25, 0.74, 3), (0.1, 0.91, 4), (0.5, 0.51, 4)]
)
def test_thresholds_above_its_own_limit_keep_a_guest_from_folding(booked, high, left):
    """With all vCPUs busy, the steal of a booking is what its core has beyond it."""
    host = alone(threads(4, steal_high_ratio=high), booked)

    assert delivered(host) == pytest.approx(left * booked)


def test_it_gives_up_one_vcpu_a_second_and_keeps_the_first():
    """The limit is there from the start, and stays."""
    assert used(alone(threads(4, **GOVERNOR), 0.25), 8) == [4, 3, 2, 1, 1, 1, 1, 1]


def test_it_takes_one_back_a_second_when_steal_is_gone():
    """The limits end after 10 s."""
    made = threads(4, **GOVERNOR)
    host = alone(made, 0.25)
    host.advance(10)

    limit_all(host, made, None)

    assert used(host, 16, first_s=10) == [1, 2, 3, 4, 4, 4]


@pytest.mark.parametrize(("cores", "left"), [(0.97, 4), (0.951, 4), (0.94, 3), (0.79, 1)])
def test_between_the_thresholds_nothing_changes(cores, left):
    """Each vCPU adds a quarter of its steal: 4.9 % is too little, 6 % is enough for one."""
    assert used(alone(threads(4, **GOVERNOR), cores), 20)[4:] == [left] * 16


def test_of_many_vcpus_as_many_are_left_as_have_five_percent_of_steal():
    """Steal counts over all vCPUs that are online: 4 of 64 have 3 / 64, 5 have 3.75 / 64."""
    assert used(alone(threads(64, vcpus=64, **GOVERNOR), 0.25), 90)[-20:] == [4] * 20


def test_the_agent_reports_no_shortfall_for_a_guest_that_folds():
    """A vCPU that the guest does not use is owed nothing, so the loss is the guest's alone."""
    made = threads(4, specs={"pref_core": "0.25"}, **GOVERNOR)

    found = run(scenario(made, duration_s=300.0, fast=0, slow=4)).vms["vm"]

    assert 4 * found.progress_refcores == pytest.approx(0.25, rel=0.03)
    assert found.delivered_ratio == pytest.approx(1.0, rel=0.01)
