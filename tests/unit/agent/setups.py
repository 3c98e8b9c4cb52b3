# SPDX-License-Identifier: Apache-2.0
"""The agent's service over a fake host: its configuration, and a way to run it for a while."""

import os
import signal
import threading
import time

from amp_nova import conf as options
from amp_nova.agent import service, wiring
from amp_nova.agent.guarding import Guarding
from amp_nova.guard.pauses import Pauses
from amp_nova.host.io import IoHost
from tests.support.fakehost import Node

NAME = "instance-00000001"
HALF = {"amp:pref_core": "0.5"}


class Setup:
    """A configuration, and a fake node that the agent finds in place of this machine.

    The writer, the pauses and the locks are the agent's own.
    """

    def __init__(self, tmp_path, monkeypatch):
        (tmp_path / "host").mkdir()
        self.tmp_path, self.state = tmp_path, tmp_path / "state"
        self.node = Node(tmp_path / "host", monkeypatch)
        self.node.kernel.pcpus = frozenset(range(4))
        self.node.sensor._paused = Pauses(self.state).current
        self.wake = None
        monkeypatch.setattr(wiring, "make_sensor", self._make_sensor)
        # A real guard must not take a fake node's threads for real ones.
        monkeypatch.setattr(Guarding, "_start", lambda _self: None)
        # Tests of single cycles need no lease.
        monkeypatch.setattr(service, "NO_LEASE", "")

    def _make_sensor(self, conf, wake=None):
        self.wake = wake
        return self.node.sensor

    def conf(self, cycle_s=0.05, **more):
        """A configuration whose state is below the test's folder."""
        path = self.tmp_path / "amp-nova.conf"
        agent = {"state_path": self.state, "cycle_s": cycle_s, **more}
        lines = [f"{k} = {v}" for k, v in agent.items()]
        path.write_text("\n".join(["[exporter]\nport = 0\n[agent]", *lines]) + "\n")
        return options.load(files=[str(path)])

    def paused(self):
        """The instances that are paused now, and why."""
        return dict(Pauses(self.state).current())

    def io_thread(self, monkeypatch):
        """The fake node's I/O threads in place of this machine's; the id of the only one."""
        found = IoHost(self.node.libvirt, self.node.host.run_path, self.tmp_path / "host")
        monkeypatch.setattr(wiring, "make_io_host", lambda _conf, _sensor: found)
        vcpus = {self.node.host.tid(i) for i in range(2)}
        (tid,) = self.node.kernel.affinity.keys() - vcpus
        return tid


def run_until(running, condition):
    """Run the service in this thread until another one sees the condition; then end it."""
    seen = []

    def watch():
        end = time.monotonic() + 10
        try:
            while not (seen or time.monotonic() > end):
                if condition():
                    seen.append(True)
                time.sleep(0.005)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGTERM, lambda *_: None)  # in case it ends before it has its own
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        running.run()
    finally:
        thread.join()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert seen, "the condition was not met within 10 s"
