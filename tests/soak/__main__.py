# SPDX-License-Identifier: Apache-2.0
"""``tools/soak``: prints a table row per minute and agent, then a verdict; exit status 1: it grows.

One agent is over a FAKE node whose domains come and go in thousands, one over libvirt and QEMU
guests, of which one is replaced every minute. Both are scraped throughout, and report through a
RabbitMQ to a scheduler's memory of hosts.
"""

import argparse
import contextlib
import fcntl
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.soak.watch import Taken, growth, most
from tests.support import lab as lab_
from tests.support.broker import PROGRAM, Broker
from tests.support.scheduler import Scheduler

LOOK_S, MINUTE_S = 5.0, 60.0
GUESTS = 6
NAP_NS = 4_000_000_000
ROW = "{:>6}  {:<12} {:>7} {:>11} {:>11} {:>7} {:>6} {:>7} {:>6} {:>7}"
HEADS = ("minute", "agent", "domains", "memory KiB", "descriptors", "threads", "series")


class FakeDomains(lab_.Agent):
    """The agent over the fake node (``tests.soak.boundary``)."""

    def command(self, *arguments: str, prefix: tuple[str, ...] = ()) -> list[str]:
        """The command line that starts it."""
        module = [sys.executable, "-m", "tests.soak.boundary", str(self.config.parent)]
        return [*prefix, *module, "--config-file", str(self.config), *arguments]

    def domains(self) -> int:
        """How many domains there were so far."""
        return int((self.config.parent / "made").read_text())

    def replace(self, minute: int) -> None:
        """It does so itself, each second."""


class RealGuests(lab_.Agent):
    """The agent over real guests that sleep most of the time; half of them book."""

    def __init__(self, lab: lab_.Lab, lock: Path | None, folder: Path, more: str) -> None:
        super().__init__(folder, more=more)
        self._lab, self._lock = lab, lock
        self._guests: list[Any] = []
        self._count = 0
        for _ in range(GUESTS):
            self._guest()

    def _guest(self) -> None:
        specs = {"amp:pref_core": "0.05"} if self._count % 2 else None
        guest = self._lab.guest(f"{self._count}", specs, cpuset=f"{lab_.FAST},{lab_.SLOW}")
        guest.nap(NAP_NS)
        self._guests.append(guest)
        self._count += 1

    def domains(self) -> int:
        """How many guests there were so far."""
        return self._count

    def replace(self, minute: int) -> None:
        """Destroy the oldest guest and start another one, unless that is done in this minute.

        While somebody else has the lock, it is put off.
        """
        if self._count >= GUESTS + minute:
            return
        with contextlib.ExitStack() as stack:
            if self._lock is not None:
                held = stack.enter_context(self._lock.open("w"))
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
            self._lab.destroy(self._guests.pop(0))
            self._guest()


class Watched:
    """One process: what it took, look by look; the most of each minute is a row."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.looks: list[Taken] = []
        self._minute: list[Taken] = []
        self.scrapes = self.missed = 0

    def look(self, agent: FakeDomains | RealGuests) -> None:
        """Scrape everything that an agent serves, then see what it takes."""
        process = agent.process
        if process is None or process.poll() is not None:
            raise RuntimeError(f"{self.name}: the agent ended: {agent.log.read_text()[-2000:]}")
        try:
            series = self._scrape(agent.url)
        except OSError:  # on a loaded machine it takes longer than the exporter waits for a client
            self.missed += 1
        else:
            self._minute.append(Taken.of(process.pid, series))

    def _scrape(self, url: str) -> int:
        """Get metrics and page; the number of series. ``OSError`` if that takes too long."""
        with urllib.request.urlopen(url, timeout=60) as reply:
            series = sum(not line.startswith(b"#") for line in reply)
        with urllib.request.urlopen(url.removesuffix("metrics"), timeout=60) as reply:
            reply.read()
        self.scrapes += 2
        return series

    def look_here(self) -> None:
        """See what this very process takes, which is the scheduler's end."""
        self._minute.append(Taken.of(os.getpid(), 0))

    def row(self, minute: int, domains: int, reports: int) -> str:
        """The most of this minute."""
        if self._minute:
            self.looks.append(most(self._minute))
            self._minute = []
        top = self.looks[-1]
        taken = (top.memory_kib, top.descriptors, top.threads, top.series)
        return ROW.format(minute, self.name, domains, *taken, self.scrapes, self.missed, reports)


def configured(url: str, node: str) -> str:
    """The rest of an agent's configuration."""
    return (
        f"[nova]\nhypervisor_hostname = {node}\n[reports]\ntransport_url = {url}\ninterval_s = 10\n"
    )


Agents = dict[str, FakeDomains | RealGuests]


@contextlib.contextmanager
def running(folder: Path, lock: Path | None) -> Iterator[tuple[Agents, Scheduler]]:
    """Everything that runs for the whole time."""
    with contextlib.ExitStack() as stack:
        broker = Broker(folder / "broker")
        stack.callback(broker.stop)
        scheduler = Scheduler(broker.url)
        stack.callback(scheduler.server.stop)
        lab = lab_.Lab(folder / "lab")
        stack.callback(lab.close)
        more = {name: configured(broker.url, name) for name in ("fake", "real")}
        agents: Agents = {
            "fake": FakeDomains(folder / "fake", more="io_work = off\n" + more["fake"]),
            "real": RealGuests(lab, lock, folder / "real", more["real"]),
        }
        for agent in agents.values():
            agent.config.chmod(0o600)  # it has the broker's password
            stack.callback(agent.stop)
            agent.start()
        yield agents, scheduler


def watch(agents: Agents, scheduler: Scheduler, minutes: int) -> list[Watched]:
    """Look at everything for so long; prints the table."""
    watched = {name: Watched(name) for name in (*agents, "scheduler")}
    print(ROW.format(*HEADS, "scrapes", "missed", "reports"), flush=True)
    began = time.monotonic()
    for minute in range(1, minutes + 1):
        while time.monotonic() < began + minute * MINUTE_S:
            for name, agent in agents.items():
                watched[name].look(agent)
                agent.replace(minute)
            watched["scheduler"].look_here()
            time.sleep(LOOK_S)
        for name, agent in agents.items():
            print(watched[name].row(minute, agent.domains(), scheduler.reports[name]))
            scheduler.forget_ended(name)
        print(watched["scheduler"].row(minute, 0, scheduler.reports.total()), flush=True)
    return list(watched.values())


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="tools/soak", description=__doc__.splitlines()[0])
    parser.add_argument("minutes", type=int, help="three at least; an hour says something")
    parser.add_argument(
        "--lock",
        type=Path,
        metavar="FILE",
        help="start guests only while nobody else has locked this file",
    )
    arguments = parser.parse_args()
    reason = lab_.why_not() or (None if PROGRAM.exists() else "rabbitmq-server is not installed")
    if reason is not None or arguments.minutes < 3:
        print(f"tools/soak: {reason or 'three minutes at least'}", file=sys.stderr)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="amp-nova-soak-") as folder,
        running(Path(folder), arguments.lock) as (agents, scheduler),
    ):
        watched = watch(agents, scheduler, arguments.minutes)
    grew = [f"{each.name}: {what}" for each in watched for what in growth(each.looks)]
    grew += [f"{name}: no report arrived" for name in agents if not scheduler.reports[name]]
    grew += [f"{w.name}: {w.missed} scrapes failed" for w in watched if w.missed > w.scrapes / 10]
    print("\n".join(grew) or "flat: the last third takes no more than the second one")
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
