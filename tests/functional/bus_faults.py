# SPDX-License-Identifier: Apache-2.0
"""What a scheduler worker and an agent keep while their bus is away: a process of its own.

``python -m tests.functional.bus_faults FAULT SECONDS`` has the fault for so long before the worker
starts and again while everything works, and prints figures as JSON.
"""

import contextlib
import gc
import json
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import nova.conf
import oslo_messaging as messaging
from oslo_utils.eventletutils import is_monkey_patched

from amp_nova import message_bus
from amp_nova.agent.publish.host_reports import MessageBus
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import Placement
from amp_nova.nova_plugins.report_server import ReportServer
from amp_nova.wire.encoding import encode
from amp_nova.wire.host_report import HostReport
from tests.support.broker import ADDRESS, Broker
from tests.support.host_reports import host_report, request
from tests.support.programs import until

USER, PASSWORD, VHOST = "agents", "right", "reports"
PATIENCE_S = 90.0


class Reports:
    """Nova's broker, and on it the virtual host of the agents' reports."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._starts = 0
        self.broker = self.start()
        self.url = f"rabbit://{USER}:{PASSWORD}@{ADDRESS}:{self.broker.port}/{VHOST}"

    def start(self, port: int | None = None) -> Broker:
        """A broker that has nothing but the virtual host and its user."""
        self._starts += 1
        self.broker = Broker(self._folder / str(self._starts), port)
        self.broker.control("add_user", USER, PASSWORD)
        self.add_vhost()
        return self.broker

    def add_vhost(self) -> None:
        """With what the user may do there."""
        self.broker.control("add_vhost", VHOST)
        self.broker.control("set_permissions", "-p", VHOST, USER, ".*", ".*", ".*")

    def break_(self, fault: str) -> None:
        """Begin a fault."""
        control = self.broker.control
        if fault == "password":
            control("change_password", USER, "wrong")
            control("close_all_user_connections", USER, "test")
        elif fault == "vhost":
            control("delete_vhost", VHOST)
        elif fault == "disk":
            control("set_disk_free_limit", "1000000GB")
        elif fault == "killed":
            self.broker.stop()

    def mend(self, fault: str) -> None:
        """End it."""
        control = self.broker.control
        if fault == "password":
            control("change_password", USER, PASSWORD)
        elif fault == "vhost":
            self.add_vhost()
        elif fault == "disk":
            control("set_disk_free_limit", "1MB")
        elif fault == "killed":
            self.start(self.broker.port)


def report(sequence: int) -> HostReport:
    """What host1 reports now."""
    return host_report(sequence=sequence, time_s=time.time())


class Host:
    """An agent that sends a report every half second, and is asked for reports."""

    def __init__(self, url: str) -> None:
        self.asked = 0
        self._bus = MessageBus(message_bus.transport(nova.conf.CONF, url), "host1")
        self._bus.listen(self._publish)
        threading.Thread(target=self._run, daemon=True).start()

    def _publish(self) -> None:
        self.asked += 1

    def _run(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            with contextlib.suppress(Exception):
                self._bus.send(encode(report(sequence)))
            time.sleep(0.5)


class Worker(ReportServer):
    """A scheduler worker without Nova's database; it remembers how old decisions were."""

    def __init__(self, name: str) -> None:
        nodes = {"resource_providers": [{"uuid": "uuid1", "name": "host1"}]}
        placement = Placement(lambda _path: nodes)
        super().__init__(HostStates(nova.conf.CONF, known=placement), placement, name)
        self.ages_s: list[float] = []
        receive = self.decisions.receive

        def remember(text: str) -> None:
            with contextlib.suppress(ValueError, KeyError):
                self.ages_s.append(time.time() - float(json.loads(text)["resource"]))
            receive(text)

        self.decisions.receive = remember  # type: ignore[method-assign]

    def follow_up(self, arriving: bool = True) -> None:
        """As if there were nothing."""
        for resource in self.states.pending():
            if time.time() - float(resource) > 30:
                self.states.release("host1", resource)


class Requests:
    """Requests of a booking, one a second, to the first worker."""

    def __init__(self, worker: Worker) -> None:
        self.longest_s = 0.0
        self.done = 0
        self._worker = worker
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            began_s, resource = time.monotonic(), str(time.time())
            query = Query(resource, request(pref_core=0.01))
            if self._worker.decisions.reserve("host1", query):
                self._worker.decisions.decided("host1", resource, query.request)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            self.done += 1
            time.sleep(1.0)


def figures(port: int) -> dict[str, int]:
    """Connections to the broker, threads and descriptors of this process."""
    gc.collect()  # not what oslo.messaging dropped
    opened = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            opened[name] = os.readlink(f"/proc/self/fd/{name}")
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{p[9]}]" for p in lines if int(p[2].split(":")[1], 16) == port}
    return {
        "connections": len(sockets & set(opened.values())),
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(opened),
    }


def mended(reports: Reports, fault: str, workers: list[Worker]) -> dict[str, Any]:
    """How long it takes until everything arrives, and how old decisions were that came late."""
    accepted = [w.states.reports["accepted"] for w in workers]
    for worker in workers:
        worker.ages_s.clear()

    def there() -> bool:
        heard = all(
            w.states.reports["accepted"] >= n + 2 for w, n in zip(workers, accepted, strict=True)
        )
        return heard and all(any(age < 1.0 for age in [*w.ages_s]) for w in workers)

    reports.mend(fault)
    began_s = time.monotonic()
    until(there, PATIENCE_S, "reports and decisions", pause_s=0.05)
    recovery_s = time.monotonic() - began_s
    time.sleep(2.0)
    late = [age for age in workers[1].ages_s if age > 2.0]
    return {"recovery_s": recovery_s, "late": len(late), "oldest_s": max(late, default=0.0)}


def main(fault: str, seconds: float, folder: Path) -> None:
    """Print the figures before, during and after."""
    conf = nova.conf.CONF
    conf([], project="nova", default_config_files=[], default_config_dirs=[])
    messaging.TransportURL.parse(conf)  # which registers the option
    reports = Reports(folder)
    port = reports.broker.port
    conf.set_override("transport_url", reports.broker.url)
    conf.set_override("transport_url", reports.url, "amp_scheduler")
    seen: dict[str, Any] = {"fault": fault, "eventlet": is_monkey_patched("thread")}

    def hold() -> list[dict[str, int]]:
        found = []
        for _ in range(4):
            time.sleep(seconds / 4)
            found.append(figures(port))
        return found

    try:
        reports.break_(fault)
        workers = [Worker("worker1"), Worker("worker2")]
        Host(reports.url)
        for worker in workers:
            worker.start()
        seen["broken at the start"] = hold()
        requests = Requests(workers[0])
        seen["after it"] = mended(reports, fault, workers)
        time.sleep(seconds / 4)
        seen["before"] = figures(port)
        reports.break_(fault)
        seen["broken"] = hold()
        seen["requests"] = requests.done
        seen["longest_s"] = requests.longest_s
        seen["after that"] = mended(reports, fault, workers)
        time.sleep(seconds / 4)
        seen["after"] = figures(port)
        print(json.dumps(seen, indent=1), flush=True)
    finally:
        reports.broker.stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        with tempfile.TemporaryDirectory() as made:
            main(sys.argv[1], float(sys.argv[2]), Path(made))
    except BaseException:
        logging.exception("it failed")
        os._exit(1)
    os._exit(0)  # threads of a bus that is away do not end
