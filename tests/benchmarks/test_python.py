# SPDX-License-Identifier: Apache-2.0
"""CPU time of policies, control cycles, simulations and commands, beside that of other Python."""

import random
import resource
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from amp_nova.agent.loop import Loop
from amp_nova.agent.operator import control_socket, status
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy, policies
from amp_nova.policies.api import Decision, HostView, VcpuView
from amp_nova_lab.run import run
from tests.support import hosts, reports
from tests.unit.lab.builders import guest, scenario

REPEATS = 4
SPEEDUPS = (2.4, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2, 1.1)
NAMES = ["slow"] * 48 + ["fast"] * 16
TOPOLOGY = Topology(
    (CoreType("slow", 1.0), CoreType("fast", 2.0)),
    tuple(PCpu(i, name, (i,), llc=i // 8 * 8) for i, name in enumerate(NAMES)),
    "slow",
    "benchmark",
)


def cpu_s(work):
    """CPU time of one call."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def least_s(*works):
    """The least CPU time of each in some rounds: noise only ever adds to it."""
    found = [[cpu_s(work) for work in works] for _ in range(REPEATS)]
    return [min(column) for column in zip(*found, strict=True)]


def reference():
    """Some milliseconds of ordinary Python: objects, dictionaries, sorting."""
    found = {}
    for number in range(5_000):
        key = (number * 7919 % 10_007, str(number))
        found[key] = [number, key]
    return sorted(found.items())


def test_a_control_cycle(within):
    """One that finds nothing to change, as almost all do."""
    host = hosts.FakeHost(hosts.topology({"slow": (128, 1.0), "fast": (128, 2.0)}))
    for number in range(100):
        host.add(f"vm{number}", {"pref_core": "0.3"} if number % 2 else {}, 4)
    loop = Loop(host, host)
    for _ in range(10):
        loop.cycle()
        host.wait(1.0)

    def cycle():
        host.wait(1.0)
        loop.cycle()

    took_s, reference_s = least_s(cycle, reference)
    within("cycle_over_python", took_s / reference_s)


def test_a_simulation(within):
    """Of ten seconds, under every policy."""
    guests = [guest(f"vm{n}", speed=speedup) for n, speedup in enumerate(SPEEDUPS)]
    host = {"fast": 4, "slow": 8, "coefficient": 2.375}

    def simulate(policy):
        made = scenario(*guests, duration_s=10.0, policy=policy, **host)
        run(made, load_policy(policy))

    *took_s, reference_s = least_s(*(partial(simulate, n) for n in policies()), reference)
    within("simulation_over_python", max(took_s) / reference_s)


def view(count):
    """vCPUs that always run, in instances of four, with everything known of them."""
    everywhere = frozenset(range(len(NAMES)))
    chance = random.Random(count)
    vcpus = tuple(
        VcpuView(
            (f"vm{i // 4:03}", i % 4),
            everywhere,
            everywhere,
            utilization_ratio=1.0,
            demand_ratio=1.0,
            ipc=chance.uniform(0.3, 2.0),
            speedup=chance.uniform(1.0, 2.0),
            sampled=True,
        )
        for i in range(count)
    )
    return HostView(TOPOLOGY, vcpus, dict.fromkeys(everywhere, 1.0), elapsed_s=2.5)


def follow(seen, decided):
    """The next view: every vCPU ran where it was placed."""
    each_s = 2.5 * min(1.0, len(NAMES) / len(seen.vcpus))
    vcpus = []
    for vcpu in seen.vcpus:
        pcpus = decided.places.get(vcpu.key, vcpu.pcpus)
        fast = len(pcpus) == 1 and NAMES[next(iter(pcpus))] == "fast"
        cpu_s = (0.0, each_s) if fast else (each_s, 0.0)
        vcpus.append(structs.replace(vcpu, pcpus=pcpus, cpu_s=cpu_s))
    return replace(seen, vcpus=tuple(vcpus), memory=decided.memory, interval=seen.interval + 1)


def decisions_s(name, count):
    """CPU time of the cheapest of some decisions after the first one."""
    policy, seen, took_s = load_policy(name), view(count), []
    for _ in range(REPEATS + 1):
        began_s = time.process_time()
        decided = policy.decide(seen)
        took_s.append(time.process_time() - began_s)
        seen = follow(seen, decided if isinstance(decided, Decision) else Decision(decided))
    return min(took_s[1:])


def test_decisions_of_policies(within):
    """Several times each, because of noise that lasts for longer than a decision."""
    few, many = (
        {n: min(decisions_s(n, count) for _ in range(times)) for n in policies()}
        for count, times in ((100, 6), (1000, 2))
    )
    (reference_s,) = least_s(reference)
    within("policy_over_python", max(few.values()) / reference_s)
    within("policy_growth", max(many[n] / few[n] / 10 for n in few if few[n] > 1e-4))


@pytest.fixture
def config(tmp_path):
    """The configuration of an agent, played by the test, with 20 instances."""
    cycle = reports.cycle(
        *(reports.instance(reports.booked(), name=f"instance-{n:08}") for n in range(20))
    )
    server = control_socket.Control(tmp_path, lambda _question: {"status": status.status(cycle)})
    path = tmp_path / "amp-nova.conf"
    path.write_text(f"[agent]\nstate_path = {tmp_path}\n")
    yield path
    server.close()


def program_s(code, *words):
    """CPU time of a program of Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_quick_commands(within, config):
    """Help needs nothing of the package, and status only what it shows."""
    command = "import sys; from amp_nova.cmd.cli import main; sys.exit(main())"
    programs = (("pass",), (command, "--help"), (command, "status", "--config-file", str(config)))
    found = [[program_s(*words) for words in programs] for _ in range(REPEATS)]
    nothing_s, help_s, status_s = (min(column) for column in zip(*found, strict=True))
    within("help_over_python", help_s / nothing_s)
    within("status_over_python", status_s / nothing_s)
