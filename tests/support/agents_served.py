# SPDX-License-Identifier: Apache-2.0
"""Agents on simulated hosts that serve their metrics, faster than real time.

The control loop, the accounting and the exporter are the agent's own. Two hosts, of which the first
is over-booked, hold bookings in both units and best effort under a policy.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from msgspec import structs

from amp_nova.agent.guarding import LeaseStatus
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import CalibrationStatus, HostInfo
from amp_nova.agent.publish.web_server import WebServer, WebSettings
from amp_nova.agent.threads import HelperThread
from amp_nova.model.topology import CoreType, PCpu, Topology
from amp_nova.plugins import load_policy
from amp_nova_lab.host import SimHost
from tests.unit.lab.builders import guest

FASTER = 15
"""Simulated seconds in a second: a minute of the service level takes 4 s."""
TYPES = (
    CoreType("slow", 1.0, "calibration", nominal_ips=2e9),
    CoreType("fast", 2.0, "calibration", nominal_ips=4e9),
)
PCPUS = tuple(PCpu(i, "fast" if i < 2 else "slow", (i,), llc=0) for i in range(4))
PROMISES = {"db": "shared-core", "batch": "crowded-core"}
"""What instances promise by Sovereign Cloud Stack."""
HOST = Topology(TYPES, PCPUS, "slow", "demo")


class Host(SimHost):
    """A simulated host whose instances have a project and a flavor, as Nova's do."""

    def observe(self):
        """What the simulated host shows, with Nova's metadata."""
        seen = super().observe()
        named = (structs.replace(d, domain=_of_nova(d.domain)) for d in seen.domains)
        return replace(seen, domains=tuple(named))


def _of_nova(domain):
    """The domain with what Nova's metadata say of its project and flavor."""
    promise = {"scs:cpu-type": PROMISES[domain.name]} if domain.name in PROMISES else {}
    return replace(domain, project="5ac0ffee", specs={**domain.specs, **promise})


class Agent:
    """One simulated host, its control loop and its exporter."""

    def __init__(self, *guests) -> None:
        self.host = Host(HOST, guests)
        self.loop = Loop(self.host, self.host, policy=load_policy("amp-vm"))
        self.exporter = Exporter(detail="vcpu")
        self.exporter.admits = HostInfo("host")
        status = self.exporter.agent
        status.calibration = CalibrationStatus(time.time() - 86400.0, {"slow": 0.01, "fast": 0.03})
        status.hypervisor_up, status.libvirt_calls, status.lateness_s = True, 12, 0.001
        status.counters = {("perf", ""): 1}
        status.lease = LeaseStatus(9.5, 0)
        status.threads = (HelperThread("exporter", print),)
        status.threads[0].success()
        server = WebServer(self.exporter.routes, WebSettings("127.0.0.1")).bind()
        self.address, self.port = server.bind_addr

    def second(self) -> None:
        """Let a simulated second pass, with one cycle at its end."""
        self.host.advance(self.host.now_s + 1.0)
        self.exporter.update(self.loop.cycle())


@contextmanager
def two_agents() -> Iterator[list[Agent]]:
    """Both agents, running until the block ends."""
    over_booked = [guest(f"web-{i}", pref_core="0.9") for i in range(7)]
    best_effort = [guest("batch", vcpus=2, speed=2.0), guest("render", vcpus=2, speed=1.2)]
    agents = [
        Agent(*over_booked, guest("noise", vcpus=2)),
        Agent(guest("db", pref_core="0.5"), guest("counted", ips="1G"), *best_effort),
    ]
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(1.0 / FASTER):
            for agent in agents:
                agent.second()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield agents
    finally:
        stopped.set()
        thread.join()
