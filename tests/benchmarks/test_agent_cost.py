"""What the agent itself costs, at 1, 20 and 100 domains with 4 vCPUs; prints, asserts nothing.

All domains are real QEMU guests under libvirt that sleep most of the time, each with its own
booking; if there is not enough memory there are fewer, and the output says so. For comparison, a
process in the same run asks libvirt for the vCPU statistics of all domains once a second, as
exporters do.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from amp_nova.agent.cycle import STAGES
from tests.benchmarks.scale import scaled
from tests.lab import FAST, SLOW, Agent, opened

WATCH_S = scaled(30.0, 2.0)
GUEST_MIB = 120
NAP_NS = 4_000_000_000

ASK_LIBVIRT = """
import libvirt, time
from tests.benchmarks.scale import scaled
conn = libvirt.openReadOnly("qemu:///system")
while True:
    conn.getAllDomainStats(
        libvirt.VIR_DOMAIN_STATS_VCPU, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    )
    time.sleep(1)
"""


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int, key: str) -> float:
    """A figure of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise AssertionError(key)


def guests_max() -> int:
    """How many guests fit into half of the free memory."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024 // 2 // GUEST_MIB
    raise AssertionError("no MemAvailable")


def test_cost_of_the_agent(tmp_path_factory: pytest.TempPathFactory) -> None:
    """CPU share, peak memory, libvirt calls and writes a cycle, on a cycle of 1 s."""
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        have = 0
        for count in scaled((1, 20, 100), (1,)):
            real = min(count, guests_max() + have)
            for number in range(have, real):
                specs = {"amp:pref_core": "0.01"}
                guest = lab.guest(f"{number}", specs, vcpus=4, cpuset=f"{FAST},{SLOW}")
                guest.nap(NAP_NS)
            have = real
            less = "" if real == count else f" of {count}: no memory for more"
            print(f"\n== {real} real domains{less}, 4 vCPUs each")
            measure(tmp_path_factory.mktemp("agent"))


def counts(agent: Agent) -> tuple[float, ...]:
    """Calls to libvirt, writes and cycles so far."""
    names = ("amp_libvirt_calls_total", "amp_writes_total")
    return (*(agent.metric(name) or 0.0 for name in names), agent.cycles())


def stages_ms(agent: Agent) -> dict[str, float]:
    """Wall time of each stage so far: the first cycles, which set everything, are part of it."""
    name = "amp_cycle_duration_seconds_sum"
    return {s: 1000 * (agent.metric(name, stage=s) or 0.0) for s in STAGES}


def measure(folder: Path) -> None:
    agent = Agent(folder).start()
    rival = subprocess.Popen([sys.executable, "-c", ASK_LIBVIRT])
    try:
        assert agent.process is not None
        time.sleep(scaled(25, 4))  # by then limits are set, and all threads listed twice
        pid = agent.process.pid
        before, stages_before = counts(agent), stages_ms(agent)
        spent, rival_spent, began = cpu_s(pid), cpu_s(rival.pid), time.monotonic()
        time.sleep(WATCH_S)
        took_s = time.monotonic() - began
        share = (cpu_s(pid) - spent) / took_s
        rival_share = (cpu_s(rival.pid) - rival_spent) / took_s
        after, stages_after = counts(agent), stages_ms(agent)
        calls, writes, cycles = (b - a for a, b in zip(before, after, strict=True))
        print(f"CPU share of one core: agent {share:.2%}, asking libvirt {rival_share:.2%}")
        print(
            f"memory: agent peak {memory_mib(pid, 'VmHWM'):.1f} MiB, "
            f"of it anonymous {memory_mib(pid, 'RssAnon'):.1f} MiB"
        )
        print(f"a cycle: {calls / cycles:.2f} libvirt calls, {writes / cycles:.2f} writes")
        print(
            "wall ms a cycle:",
            *(f"{s} {(stages_after[s] - stages_before[s]) / cycles:.2f}" for s in STAGES),
        )
    finally:
        rival.terminate()
        rival.wait()
        agent.stop()
