"""Bookings of instructions per second, on real guests whose instructions a QEMU plugin counts.

What was delivered is read from the plugin's file, not from the agent.
"""

import time
from statistics import fmean

import pytest

from tests.lab import FAST, SLOW, unless_stolen, until

pytestmark = pytest.mark.measures


def ips_of(guest, seconds):
    """Instructions per second of every vCPU, over some seconds."""
    before, began_s = guest.instructions(), time.monotonic()
    time.sleep(seconds)
    after, took_s = guest.instructions(), time.monotonic() - began_s
    return [(b - a) / took_s for a, b in zip(before, after, strict=True)]


def ips_and_speed(guest, seconds):
    """The same of a guest with one vCPU, and its instructions per CPU second."""
    (spent_ns,), (before,) = guest.cpu_ns(), guest.instructions()
    (ips,) = ips_of(guest, seconds)
    ran_s = (guest.cpu_ns()[0] - spent_ns) / 1e9
    return ips, (guest.instructions()[0] - before) / ran_s


@pytest.fixture(scope="module")
def free_ips(lab):
    """Instructions per second of such a guest without a limit, with one vCPU and with two."""
    found = {}
    for vcpus in (1, 2):
        pins = {0: str(FAST), 1: str(SLOW)}
        pins = {i: pins[i] for i in range(vcpus)}
        guest = lab.guest(f"free{vcpus}", vcpus=vcpus, pins=pins, counter=True)
        time.sleep(1.0)
        found[vcpus] = min(ips_of(guest, 2.0))
        lab.clear()
    return found


@pytest.mark.parametrize(
    ("booked", "writer"), [(0.05, "cgroup"), (0.3, "cgroup"), (0.8, "cgroup"), (0.3, "libvirt")]
)
def test_one_vcpu_gets_what_it_books(guests, agent, free_ips, booked):
    """Within 5 % over 10 s, whatever part of the core it is, on a machine that does other things.

    While those slow the core down or take more than a tenth of it, as much as remains: what it
    lacks in one second, the vCPU does not get in another. The error on an undisturbed machine is
    measured in benchmarks/test_ips_real.
    """
    ips = booked * free_ips[1]
    specs = {"amp:ips": f"{ips:.0f}"}
    guest = guests.guest("booked", specs, counter=True, cpuset=str(FAST))
    agent.start()
    time.sleep(3.0)

    seconds = []

    def kept():
        seconds[:] = [ips_and_speed(guest, 1.0) for _ in range(10)]
        got = fmean(each for each, _ in seconds)
        print(f"\nB/R {booked:.2f}: {got / ips - 1:+.2%}")
        assert got < 1.05 * ips
        assert got > 0.95 * fmean(min(ips, 0.9 * speed) for _, speed in seconds)

    unless_stolen(kept)
    if min(speed for _, speed in seconds) < 1.3 * ips:
        return
    labels = {"domain": guest.spec.name, "vcpu": "0"}
    until(
        lambda: agent.metric("amp_vcpu_delivered_ratio", **labels) == pytest.approx(1.0, abs=0.05),
        10,
        "a window within the booking",
    )
    assert agent.metric("amp_vcpu_booked_ips", **labels) == pytest.approx(ips, rel=1e-6)


def test_vcpus_of_one_vm_get_what_each_books(guests, agent, free_ips):
    """An AMP VM: a sixth and a half of what a core gives."""
    ips = [free_ips[2] / 6, free_ips[2] / 2]
    specs = {f"amp:ips.{i}": f"{booked:.0f}" for i, booked in enumerate(ips)}
    pins = {0: str(FAST), 1: str(SLOW)}
    guest = guests.guest("amp", specs, vcpus=2, pins=pins, counter=True)
    agent.start()
    time.sleep(3.0)

    def kept():
        got = ips_of(guest, 10.0)
        print("\n" + ", ".join(f"{g / b - 1:+.2%}" for g, b in zip(got, ips, strict=True)))
        assert got == pytest.approx(ips, rel=0.05)

    unless_stolen(kept)


def test_an_uncounted_guest_is_reported_as_unverifiable(guests, agent):
    """It has no delivered ratio, and the note says what is missing."""
    guest = guests.guest("uncounted", {"amp:ips": "100M"})
    agent.start()

    status = agent.cli("status", "--format", "json").stdout

    assert "unverifiable" in status
    assert agent.metric("amp_vcpu_delivered_ratio", domain=guest.spec.name) is None
