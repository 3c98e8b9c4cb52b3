# SPDX-License-Identifier: Apache-2.0
"""``amp-nova-guard``: applies the safe state of every record when the agent's lease has expired.

It sleeps while an agent renews the lease. It runs in its own process, does not need libvirt, and
ends when nothing is left to guard.
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from amp_nova.exceptions import ConfigInvalid
from amp_nova.guard import lease, locks, record
from amp_nova.guard.pauses import Pauses
from amp_nova.guard.restore import original, restore, safe

POLL_S = 1.0
LOCK_S = 1.0
"""How long to wait for the cycle lock; an agent that hangs may hold it."""


def say(text: str) -> None:
    """Print a line on standard error; a closed standard error is not a failure."""
    with contextlib.suppress(OSError):
        print(f"amp-nova-guard: {text}", file=sys.stderr, flush=True)


class Watch:
    """Keeps every recorded domain in its safe state for as long as the lease is expired.

    Once would not be enough: an agent that was stopped right before a write may be resumed, and
    make that write, after the guard has acted.
    """

    def __init__(self, state_path: Path, proc: str = "/proc") -> None:
        self._state_path = state_path
        self._proc = proc
        self._pauses = Pauses(state_path)
        self._ended_ns: int | None = None
        """End of the last lease whose expiry was counted: a renewed lease may expire between two
        polls."""
        self._said: set[str] = set()

    def poll(self) -> tuple[float, bool]:
        """Act if the lease has expired; returns seconds to the next poll, and whether to go on."""
        left_s = lease.remaining_s(self._state_path)
        if left_s:
            self._ended_ns = None
            self._said.clear()
            return min(left_s, 600.0), True
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(ConfigInvalid):  # after that, it goes on without the lock
                path = self._state_path
                stack.enter_context(locks.locked(path, locks.CYCLE, wait_s=LOCK_S))
            try:
                domains = self._domains()
            except OSError as exc:
                self._say_once(f"the records cannot be read: {exc.strerror}")
                return POLL_S, True
            ended_ns = lease.ends_ns(self._state_path)
            if domains and self._ended_ns != ended_ns and not lease.remaining_s(self._state_path):
                self._ended_ns = ended_ns
                lease.count_expiration(self._state_path)
                say("the lease has expired, so no agent completes cycles: applying the safe state")
            for domain in domains:
                try:
                    self._guard(domain)
                except Exception as exc:  # noqa: BLE001 - no domain may affect the others
                    self._say_once(f"{domain.name} cannot be guarded: {exc!r}")
        return POLL_S, bool(domains)

    def _domains(self) -> list[record.RecordedDomain]:
        """The records of domains that still run; the agent removes those of others."""
        running = []
        for resource, domain in record.load_all(self._state_path / record.FOLDER):
            if isinstance(domain, Exception):
                self._say_once(f"the record of {resource} cannot be used: {domain}")
            elif os.path.dirname(domain.process) != self._proc:
                self._say_once(f"the record of {resource} names no process in {self._proc}")
            elif record.alive(domain):
                running.append(domain)
        return running

    def _guard(self, domain: record.RecordedDomain) -> None:
        if not self._may(domain.resource):
            return
        may = partial(self._may, domain.resource)
        result = restore(domain, safe, may=may)
        # A command that has the lock may have released it just before the last write.
        wrote = result.vcpus or result.changes
        if wrote and self._pauses.current().get(domain.resource, "").startswith(record.RELEASED):
            result = restore(domain, original)
        for line in (*result.changes, *result.left):  # the next poll retries what failed
            self._say_once(line)

    def _may(self, resource: str) -> bool:
        """Whether the guard may write now: no agent has a lease, and no operator objects."""
        return not (lease.remaining_s(self._state_path) or resource in self._pauses.current())

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)


def main(argv: Sequence[str] | None = None) -> int:
    """Guard until nothing is left to guard, or until terminated; returns the exit status.

    With ``--stay``, and while the agent that started it runs, the guard goes on with nothing to
    guard: the agent has recorded nothing yet.
    """
    parser = argparse.ArgumentParser(prog="amp-nova-guard", description=__doc__.splitlines()[0])
    parser.add_argument("--state-path", type=Path, default=Path("/run/amp-nova"), metavar="DIR")
    parser.add_argument(
        "--stay",
        action="store_true",
        help="do not exit when nothing is left to guard; for a service manager",
    )
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument(
        "--agent", type=int, metavar="PID", help="do not exit while PID is the parent process"
    )
    arguments = parser.parse_args(argv)
    if arguments.version:
        import importlib.metadata  # here, so that a running guard does not load it

        print(f"amp-nova-guard {importlib.metadata.version('amp-nova')}")
        return 0
    try:
        arguments.state_path.mkdir(parents=True, exist_ok=True)
        while (lock := lease.alone(arguments.state_path)) is None and arguments.stay:
            time.sleep(POLL_S)
    except OSError as exc:
        say(
            f"--state-path {arguments.state_path} cannot be written ({exc.strerror}): "
            "name the folder of [agent] state_path, and run this as root"
        )
        return 2
    if lock is None:
        say("another guard is already running")
        return 0
    watch = Watch(arguments.state_path)
    while True:
        wait_s, go_on = watch.poll()
        if not (go_on or arguments.stay or os.getppid() == arguments.agent):
            return 0
        time.sleep(wait_s)


if __name__ == "__main__":
    sys.exit(main())
