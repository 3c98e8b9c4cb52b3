# SPDX-License-Identifier: Apache-2.0
"""A host whose kernel prefers fast pCPUs, beside one whose kernel does not know them."""

from dataclasses import replace

import pytest

from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.host import SimHost
from amp_nova_lab.run import run
from amp_nova_lab.scenarios.hosts import Machine
from tests.unit.lab.builders import guest, scenario

PREFER_FAST = Machine(kernel="prefer_fast")


def on_both(*guests, policy="none", **host):
    """The results of a scenario on either kernel."""
    made = scenario(*guests, **host)
    return [
        run(replace(made, machine=Machine(kernel=k)), load_policy(policy))
        for k in ("blind", "prefer_fast")
    ]


def test_a_busy_vcpu_moves_to_an_idle_fast_pcpu():
    """It does at once, and once; without preference it stays where it started."""
    blind, prefers = on_both(guest(start_on="slow"))

    assert (blind.vms["vm"].fast_share, blind.migrations) == (0.0, 0)
    assert (prefers.vms["vm"].fast_share, prefers.migrations) == (1.0, 1)


@pytest.mark.parametrize(("fast", "slow"), [(1, 1), (1, 3), (2, 2)])
def test_nothing_moves_while_all_fast_pcpus_are_busy(fast, slow):
    """Whoever came first keeps the fast pCPU, and nobody fights for it."""
    for vcpus in range(fast, fast + slow + 1):
        guests = [guest(f"vm{i}") for i in range(vcpus)]
        _, prefers = on_both(*guests, fast=fast, slow=slow)
        shares = sorted(vm.fast_share for vm in prefers.vms.values())
        assert shares == [0.0] * (vcpus - fast) + [1.0] * fast
        assert (prefers.migrations, prefers.fast_idle_ratio) == (0, 0.0)


def test_fast_pcpus_idle_only_while_nobody_could_use_them():
    """A guest that sleeps half the time leaves the fast pCPU to the other one, and back."""
    guests = guest("busy", speed=2.0), guest("sleeps", utilization=0.5)
    prefers = on_both(*guests)[1]

    assert prefers.fast_idle_ratio == pytest.approx(0.0, abs=1e-9)
    assert prefers.vms["busy"].fast_share > 0.99


def test_a_thread_beside_a_busy_one_is_not_idle():
    """One fast core of two threads and two slow cores: the second vCPU stays on a slow one."""
    types = CoreType("slow", 1.0), CoreType("fast", 2.0, threads_per_core=2, smt_busy_factor=0.4)
    names = "fast", "fast", "slow", "slow"
    pcpus = tuple(PCpu(i, n, (0, 1) if n == "fast" else (i,), llc=0) for i, n in enumerate(names))
    guests = [guest(n, start_on="slow") for n in "ab"]
    host = SimHost(Topology(types, pcpus, "slow", "test"), guests, machine=PREFER_FAST)
    host.advance(10.0)

    assert sorted(host.meters(n)[0].run_s for n in "ab") == [(0.0, 10.0), (10.0, 0.0)]
