# SPDX-License-Identifier: Apache-2.0
"""What the agent itself costs beside real guests that sleep most of the time."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.lab import FAST, SLOW, Agent

pytestmark = pytest.mark.measures
GUESTS, VCPUS = 6, 4
NAP_NS = 4_000_000_000
SETTLED_S, WATCH_S = 12.0, 6.0
ASK_LIBVIRT = """
import libvirt, time
conn = libvirt.openReadOnly("qemu:///system")
next_s = time.monotonic()
while True:
    conn.getAllDomainStats(
        libvirt.VIR_DOMAIN_STATS_VCPU, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    )
    next_s += 0.1
    time.sleep(max(0.0, next_s - time.monotonic()))
"""
"""What exporters do, ten times a second on average, on a slow machine too."""


def cpu_s(pid: int) -> float:
    """CPU time of all threads of a process so far."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(path.read_text().split()[0]) for path in files) / 1e9


def anonymous_mib(pid: int) -> float:
    """Memory of a process that no file backs."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("RssAnon")
    )
    return int(line.split()[1]) / 1024


@pytest.mark.parametrize(
    ("figure", "specs"),
    [
        ("agent_over_asking_libvirt", {"amp:pref_core": "0.01"}),
        ("agent_ips_over_asking_libvirt", {"amp:ips": "1M"}),
    ],
    ids=["refcores", "ips"],
)
def test_cost_of_the_agent(within, guests, tmp_path, figure, specs):
    """CPU time beside that of a loop that asks libvirt; calls and writes when nothing changes."""
    for number in range(GUESTS):
        guest = guests.guest(
            str(number), specs, vcpus=VCPUS, cpuset=f"{FAST},{SLOW}", counter="amp:ips" in specs
        )
        guest.nap(NAP_NS)
    agent = Agent(tmp_path).start(settle=False)
    rival = subprocess.Popen([sys.executable, "-c", ASK_LIBVIRT])

    def counts():
        names = ("amp_libvirt_calls_total", "amp_writes_total")
        return (*(agent.metric(name) or 0.0 for name in names), agent.cycles())

    try:
        time.sleep(SETTLED_S)  # by then limits are set, and all threads listed twice
        pid = agent.process.pid
        before, spent_s, rival_s = counts(), cpu_s(pid), cpu_s(rival.pid)
        time.sleep(WATCH_S)
        spent_s, rival_s = cpu_s(pid) - spent_s, cpu_s(rival.pid) - rival_s
        calls, writes, cycles = (b - a for a, b in zip(before, counts(), strict=True))
        memory_mib = anonymous_mib(pid)
    finally:
        rival.kill()
        rival.wait()
        agent.stop()
    within(figure, spent_s / rival_s)
    within("libvirt_calls_a_cycle", calls / cycles)
    within("agent_anonymous_mib", memory_mib)
    if "amp:ips" not in specs:
        within("writes_a_cycle", writes / cycles)
