# SPDX-License-Identifier: Apache-2.0
"""The agent's lease, and the guard that acts when it expires (``amp_nova.guard``)."""

import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import amp_nova
from amp_nova.agent.cycle import Cycle
from amp_nova.exceptions import ConfigInvalid
from amp_nova.guard import locks
from amp_nova.guard.lease import Lease
from amp_nova.model.allocation import LOCKED

LOG = logging.getLogger(__name__)
AGAIN_S = 5.0
"""How long a guard may take to start before another one is started."""
LOCK_WAIT_S = 1.0
"""How long a cycle waits for the lock under which it takes a new lease."""


@dataclass(frozen=True, slots=True)
class LeaseStatus:
    """Seconds that were left when the lease was last renewed, and how often it has expired.

    ``guarded``: whether a guard was running then.
    """

    left_s: float
    expirations: int
    guarded: bool = True


class Guarding:
    """Takes a lease, renews it after completed cycles, and ensures that a guard is running."""

    def __init__(self, state_path: Path, length_s: float, *, quiet: bool = False) -> None:
        """Open the lease; raises ``ConfigInvalid`` if the state folder is not writable.

        ``quiet``: a guard that is started writes nothing to this process's standard error.
        """
        self._stderr = subprocess.DEVNULL if quiet else None
        self._state_path = state_path
        self._child: subprocess.Popen[bytes] | None = None
        self._cycle: Cycle | None = None
        self._completed = True
        """Whether a cycle was completed since the last new lease: otherwise there is no other."""
        self._problem: str | None = None
        try:
            self._lease = Lease(state_path, length_s)
        except OSError as exc:
            raise ConfigInvalid(
                f"the lease in [agent] state_path {state_path} cannot be written "
                f"({exc.strerror}): free some space there or set another folder"
            ) from exc
        self.status = LeaseStatus(length_s, self._lease.expirations)
        # A service manager starts its guard itself, at about the same time.
        self._start_s = time.monotonic() + (AGAIN_S if "INVOCATION_ID" in os.environ else 0.0)
        self._start()

    def lost(self) -> str:
        """Why nothing may be written now; empty as long as the agent has the lease."""
        return self._lease.lost()

    def before(self) -> bool:
        """Prepare for a cycle: start a guard if none is running, and replace a lost lease.

        Returns whether the cycle must adopt what is in force, because the guard may have acted.
        """
        self._start()
        why = self._lease.lost() if self._completed else ""
        taken = bool(why) and self._take(why)
        acted = self._lease.taken_over()
        if acted:
            LOG.warning("the guard has applied the safe state; adopting the limits in force")
        return taken or acted

    def _take(self, why: str) -> bool:
        """Take a new lease while the guard is not at work; returns whether that succeeded."""
        try:
            with locks.locked(self._state_path, locks.CYCLE, wait_s=LOCK_WAIT_S):
                self._lease.take()
        except (ConfigInvalid, OSError) as exc:
            text = exc.strerror if isinstance(exc, OSError) else str(exc)
            self._report(f"cannot take a new lease ({text}): a guard takes over")
            return False
        self._completed = False
        if self._cycle is not None:
            LOG.warning("%s; taking a new one", why)
        return True

    def after(self, cycle: Cycle | None) -> LeaseStatus:
        """Renew the lease if a cycle was completed since the last call; returns its status.

        The lease is not renewed while another process blocks the agent's changes, nor once it is
        lost.
        """
        if cycle is not None and cycle is not self._cycle:
            self._cycle = cycle
            failures = (*cycle.outcome.failures.values(), *cycle.outcome.weight_failures.values())
            # The message names the process whose lock blocked this cycle's changes, if any.
            problem = next((f.message for f in failures if f.reason == LOCKED), None)
            self._completed = problem is None
            if problem is None:
                try:
                    left_s = self._lease.renew()
                    expirations, guarded = self._lease.expirations, self._lease.guarded()
                    self.status = LeaseStatus(left_s or 0.0, expirations, guarded)
                except OSError as exc:
                    problem = f"the lease cannot be renewed ({exc.strerror}): a guard takes over"
            self._report(problem)
        return self.status

    def _report(self, problem: str | None) -> None:
        """Log a problem with the lease, once until it is over."""
        if problem is not None and self._problem is None:
            LOG.error("%s; retrying in every cycle", problem)
        self._problem = problem

    def close(self) -> None:
        """Close the lease; it stays valid until it expires, so that a new agent can start."""
        self._lease.close()

    def _start(self) -> None:
        """Start a guard as a child in a session of its own, unless one is running."""
        if self._child is not None:
            self._child.poll()  # leave no zombie
        now = time.monotonic()
        if now < self._start_s or self._lease.guarded():
            return
        self._start_s = now + AGAIN_S
        LOG.info("no guard is running: starting one")
        # Without site-packages, user packages or modules of the current directory.
        command = [sys.executable, "-sSP", "-m", "amp_nova.guard"]
        try:
            self._child = subprocess.Popen(
                [*command, "--state-path", self._state_path, "--agent", str(os.getpid())],
                cwd="/",
                env={"PYTHONPATH": str(Path(amp_nova.__file__).parents[1])},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as exc:
            LOG.error("the guard cannot be started: %s", exc.strerror)
