# SPDX-License-Identifier: Apache-2.0
"""``tools/minicloud``: up, down, status."""

import argparse
import os
import shutil
import subprocess
import sys
import time

from tools.cloud import configuration, controllers, hosts, stock
from tools.cloud.layout import CORES, HOSTS, LOG, PORTS, RUN, STATE
from tools.cloud.processes import Failed, listens, running, started, step, stop

LAST = ("rabbitmq", "epmd", "mariadb", "instances")


def check() -> None:
    """Refuse to begin where it cannot end well."""
    if started():
        raise Failed("the mini-cloud runs already, or did not end well: tools/minicloud down")
    if not hosts.CPU_TREE.is_dir():
        raise Failed(f"{hosts.CPU_TREE} is not there: the mini-cloud needs cgroups of version 1")
    if not 1 <= CORES <= (count := os.cpu_count() or 1):
        raise Failed(f"MINICLOUD_CORES={CORES}: this machine has {count}")
    ports = [*PORTS.values(), *(host.metrics_port for host in HOSTS)]
    if taken := [port for port in ports if listens(port)]:
        raise Failed(f"port {taken[0]} is taken: set MINICLOUD_PORT to the first of 30 free ones")


def up() -> None:
    """Bring everything up, from nothing."""
    began_s = time.monotonic()
    shutil.rmtree(STATE, ignore_errors=True)
    RUN.mkdir(parents=True)
    LOG.mkdir()
    hosts.enter_control()
    configuration.write_all()
    libvirts = [lambda host=host: hosts.start_libvirt(host) for host in HOSTS]
    first = (controllers.start_broker, controllers.start_database, hosts.share_instances)
    step("RabbitMQ, MariaDB and two libvirts", *first, *libvirts)
    controllers.fill_databases()
    controllers.start_apis()
    step("conductor and scheduler", controllers.start_nova)
    for host in HOSTS:
        hosts.start_compute(host)
    step("computes", controllers.wait_for_computes)
    if CORES == 1:
        hosts.slow_down()
        step("calibration of both hosts", hosts.calibrate)
    agents = [lambda host=host: hosts.start_agent(host) for host in HOSTS]
    step("agents and Prometheus", controllers.start_prometheus, *agents)
    step("image and flavors", stock.fill)
    hosts.make_way()
    print(f"{time.monotonic() - began_s:7.1f} s  in all", file=sys.stderr)
    print(stock.WELCOME)


def down() -> None:
    """Stop what runs, last started first; the logs stay until the next ``up``."""
    hosts.leave_control()
    first = [name for name in started() if name.startswith(("nova-compute-", "agent-"))]
    stop(first, 2.0)
    hosts.end_guards()
    for host in HOSTS:
        hosts.destroy_guests(host)
    stop([name for name in started() if name not in LAST])
    stop([name for name in started() if name != "instances"], 10.0)
    hosts.unmount_instances()
    stop(started())
    hosts.remove_groups()


def status() -> int:
    """What runs; 0 when all that was started still does."""
    names = sorted(started())
    for name in names:
        print(f"{running(name) or 'ended':>8} {name}")
    return 0 if names and all(running(name) for name in names) else 1


def main() -> int:
    """Run the action; 1, and one sentence on standard error, when it fails."""
    parser = argparse.ArgumentParser(prog="tools/minicloud", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "status"))
    action = parser.parse_args().action
    try:
        if action == "status":
            return status()
        if action == "down":
            down()
            return 0
        check()
        try:
            up()
        except BaseException:
            down()  # the logs stay
            raise
    except (Failed, OSError, subprocess.SubprocessError) as exc:
        print(f"minicloud: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
