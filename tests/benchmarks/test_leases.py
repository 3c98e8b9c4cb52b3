"""What guests get, second by second, after the agent was killed; prints, asserts nothing.

A best-effort guest has the least weight because of a booking of half a slow core. The agent is
killed, and another guest that uses all it can get is booted on the same core.
"""

import time

import pytest

from tests.benchmarks.scale import scaled
from tests.integration.test_leases_real import least
from tests.lab import SLOW, Agent, opened, undisturbed, until

LEASE_S = scaled(10.0, 2.0)
SECONDS = scaled(20, 5)


def test_shares_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share of the core and rounds of work of each guest, in every second since the kill."""
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        agent = Agent(tmp_path_factory.mktemp("agent"), more=f"lease_s = {LEASE_S}\n")
        try:
            specs = {"amp:pref_core": "0.5"}
            booked = lab.guest("booked", specs, cpuset=str(SLOW))
            victim = lab.guest("victim", cpuset=str(SLOW))
            agent.start()
            until(lambda: least(victim), 10, "the least weight")
            agent.next_cycle(1)
            began = time.monotonic()
            agent.kill()
            guests = [booked, victim, lab.guest("newcomer", cpuset=str(SLOW))]
            print(f"\nlease {LEASE_S:g} s; share of one core, and rounds of work per second")
            print("since kill          booked            victim          newcomer")
            with undisturbed(booked):
                while time.monotonic() - began < SECONDS:
                    before = [(g.cpu_ns()[0], g.rounds()[0]) for g in guests]
                    start = time.monotonic()
                    time.sleep(1)
                    took_s = time.monotonic() - start
                    line = f"{start - began:8.1f} s"
                    for guest, (ns, rounds) in zip(guests, before, strict=True):
                        share = (guest.cpu_ns()[0] - ns) / 1e9 / took_s
                        line += f" {share:8.3f} {(guest.rounds()[0] - rounds) / took_s:8.0f}"
                    print(line)
        finally:
            agent.stop()
