"""Reports of a large cloud into four scheduler workers over a real RabbitMQ; prints figures.

Hosts are simulated: the agent's own loop decides on some of them, and its own code makes, encodes
and sends a report for each host of the cloud, at its regular rate. Half-way one worker is replaced;
the new one asks all agents, whose answers are spread as ``[reports] answer_spread_s`` says.
Run it where Nova and the package ``rabbitmq-server`` are installed::

    .venv-nova/bin/python -m pytest tests/benchmarks/test_report_scale.py -s
"""

import collections
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from msgspec import structs

from amp_nova import conf
from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import host_reports
from amp_nova.agent.publish.host_info import HostInfo, host_report
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import Origin
from tests import broker, hosts
from tests.benchmarks.scale import scaled
from tests.lab import until

HOSTS = int(os.environ.get("AMP_NOVA_HOSTS", scaled(10_000, 40)))
MINUTES = float(os.environ.get("AMP_NOVA_MINUTES", scaled(10.0, 0.1)))
WORKERS = 4
INTERVAL_S = scaled(60.0, 2.0)
SPREAD_S = scaled(30.0, 1.0)
QUEUES_EVERY_S = scaled(20.0, 2.0)
KINDS = 20
"""Hosts that are simulated; the others report as one of them does, with instances of their own."""

pytestmark = [
    pytest.mark.skipif(find_spec("nova") is None, reason="Nova is not installed"),
    pytest.mark.skipif(not broker.PROGRAM.exists(), reason="rabbitmq-server is not installed"),
    pytest.mark.timeout(MINUTES * 60 + 600),
]


def simulated(number):
    """The report of a host of 32 pCPUs with 20 instances of two vCPUs, half of them booked."""
    host = hosts.FakeHost(hosts.topology({"slow": (16, 1.0), "fast": (16, 2.0)}))
    for i in range(20):
        specs = {"pref_core": str(0.1 * (1 + (i + number) % 8))} if i % 2 else {}
        host.add(str(uuid.uuid4()), specs, 2, flavor_id=str(uuid.uuid4()), image=str(uuid.uuid4()))
    loop = Loop(host, host)
    for _ in range(3):
        cycle = loop.cycle()
        host.wait(1.0)
    return host_report(cycle, HostInfo("", policy="amp-vm"), Origin("x", "x", 0, 0.0, 0.0))


class Cloud:
    """The agents of all hosts, in one process; each reports when it is due."""

    def __init__(self, url, folder):
        config = folder / "agent.conf"
        config.write_text(f"[reports]\ntransport_url = {url}\n")
        config.chmod(0o600)
        self._transport = host_reports.connect(conf.load(files=[str(config)]))
        self._bus = host_reports.MessageBus(self._transport, "all-hosts")
        self._kinds = [simulated(number) for number in range(KINDS)]
        self._instances = {}
        self._due = collections.deque(
            sorted((random.random() * INTERVAL_S, n) for n in range(HOSTS))
        )
        self._answers = collections.deque()
        self._began_s = time.monotonic()
        self._sequence = 0
        self.sent, self.late_s, self.asked = 0, 0.0, 0
        self.stopping = threading.Event()

    def run(self):
        """Send what is due, until it is stopped."""
        self._bus.listen(self._asked)
        while not self.stopping.is_set():
            now_s = time.monotonic() - self._began_s
            if self._due[0][0] <= now_s:
                due_s, number = self._due.popleft()
                self._due.append((due_s + INTERVAL_S, number))
                self.late_s = max(self.late_s, now_s - due_s)
                self._send(number)
            elif self._answers and self._answers[0][0] <= now_s:
                self._send(self._answers.popleft()[1])
            else:
                self.stopping.wait(0.002)

    def stop(self):
        self.stopping.set()
        self._bus.stop()
        self._transport.cleanup()

    def _asked(self):
        """All agents answer a scheduler, each after a random part of ``SPREAD_S``."""
        now_s = time.monotonic() - self._began_s
        self.asked += 1
        answers = sorted((now_s + random.random() * SPREAD_S, n) for n in range(HOSTS))
        self._answers = collections.deque(answers)

    def _send(self, number):
        kind = self._kinds[number % KINDS]
        node, self._sequence = f"compute{number}", self._sequence + 1
        ids = self._instances.get(number)
        if ids is None:
            ids = self._instances[number] = [str(uuid.uuid4()) for _ in kind.instances]
        instances = tuple(
            structs.replace(instance, resource=own)
            for instance, own in zip(kind.instances, ids, strict=True)
        )
        busy = structs.replace(instances[0].vcpus[0], utilization_ratio=round(random.random(), 4))
        first = structs.replace(instances[0], vcpus=(busy, *instances[0].vcpus[1:]))
        uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        origin = Origin(node, "first", self._sequence, time.time(), uptime_s)
        self._bus.send(encode(replace(kind, origin=origin, instances=(first, *instances[1:]))))
        self.sent += 1


class Worker:
    """A scheduler worker, and what it last said of itself."""

    def __init__(self, url, name, folder):
        self.name, self.said, self.lags_s = name, {}, []
        self.began_s = self.start_cpu_s = 0.0
        config = folder / "nova.conf"
        config.write_text(f"[DEFAULT]\ntransport_url = {url}\n")
        environment = {**os.environ, "OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"}
        with (folder / f"{name}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "ignore",
                    "-m",
                    "tests.benchmarks.report_worker",
                    str(config),
                    name,
                ],
                cwd=Path(__file__).parents[2],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            said = json.loads(line)
            if not self.said:
                self.began_s, self.start_cpu_s = time.monotonic(), said["cpu_s"]
            self.said = said
            self.lags_s.append(self.said["lag_s"])

    def line(self):
        """What it cost since it began to listen."""
        said, life_s = self.said, time.monotonic() - self.began_s
        cpu_s = said["cpu_s"] - self.start_cpu_s
        lags_s = sorted(self.lags_s)
        return (
            f"{self.name}: {said['received']} reports of {said['hosts']} hosts, "
            f"{cpu_s / life_s:.1%} of a core, {said['memory_mib']:.0f} MiB, "
            f"{cpu_s / max(1, said['received']) * 1e6:.0f} us a report; slowest report "
            f"of a second: median {statistics.median(lags_s):.3f} s, most {lags_s[-1]:.3f} s; "
            f"{said['refused']} refused"
        )

    def stop(self):
        self.process.terminate()
        self.process.wait()


def watch(server, seconds, lengths):
    """Note the lengths of the workers' queues for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        lengths.append(server.queues("amp_scheduler"))
        time.sleep(min(QUEUES_EVERY_S, max(0.0, end - time.monotonic())))


def test_reports_of_a_large_cloud(tmp_path):
    """Prints the figures; asserts that nothing is refused and every worker knows every host."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is not None and patcher.is_monkey_patched("thread"):
        pytest.skip("needs native threads; runs in Nova's other concurrency mode")
    server = broker.Broker(tmp_path / "rabbitmq")
    with contextlib.ExitStack() as stack:
        stack.callback(server.stop)
        workers = [Worker(server.url, f"worker{n}", tmp_path) for n in range(WORKERS)]
        stack.callback(lambda: [worker.stop() for worker in workers])
        until(lambda: all(w.said for w in workers), 120, "the workers")
        cloud = Cloud(server.url, tmp_path)
        stack.callback(cloud.stop)
        threading.Thread(target=cloud.run, daemon=True).start()
        lengths = []
        watch(server, MINUTES * 30, lengths)
        print(f"\n== {HOSTS} hosts, a report each {INTERVAL_S:g} s, {WORKERS} workers")
        print(f"queues before the restart: longest {max(map(max, lengths))}")
        for worker in workers:
            print(worker.line())
        workers.pop(0).stop()
        asked_s, lengths = time.monotonic(), []
        workers.append(Worker(server.url, "new", tmp_path))
        new = workers[-1]
        until(lambda: new.said.get("hosts") == HOSTS, INTERVAL_S + SPREAD_S + 120, "all hosts")
        print(f"a new worker knows all hosts after {time.monotonic() - asked_s:.0f} s")
        watch(server, MINUTES * 30, lengths)
        longest = [max(sample) for sample in zip(*map(sorted, lengths), strict=False)]
        print(f"queues after the restart, one of them without a worker: longest {longest}")
        for worker in workers:
            print(worker.line())
        print(f"sent {cloud.sent} reports, at most {cloud.late_s:.2f} s late; {cloud.asked} asked")
        assert all(worker.said["refused"] == 0 for worker in workers)
        assert all(worker.said["hosts"] == HOSTS for worker in workers)
