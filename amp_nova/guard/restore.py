"""Brings a recorded domain into its safe state, or back to what the agent found."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from amp_nova.guard import kernel, target
from amp_nova.guard.record import Domain, State, Vcpu

ATTEMPTS = 4
"""How often a vCPU whose pCPUs change meanwhile is restored; the guard's next poll goes on."""
Target = Callable[[Vcpu, State], State]
"""Decides what shall be in force for a vCPU, from its record and its present state."""


def found(vcpu: Vcpu, _now: State) -> State:
    """What was found before the agent's first change."""
    return vcpu.found


@dataclass(slots=True)
class Done:
    """A line for each change (in a dry run, each planned one), a sentence for each leftover."""

    changes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    vcpus: bool = False
    """Whether a vCPU changes, and not only the weight."""


def always() -> bool:
    """Nothing ends the right to write."""
    return True


def restore(
    domain: Domain,
    wanted: Target,
    *,
    dry_run: bool = False,
    may: Callable[[], bool] = always,
) -> Done:
    """Restore a domain; a target that is gone or has been replaced is left alone.

    ``may``: asked right before each write; no more is written once it says no.
    """
    done = Done()

    def attempt(who: str, act: Callable[[], None]) -> None:
        try:
            act()
        except kernel.Refused as exc:
            done.left.append(f"{who}: {exc}")
        except OSError as exc:
            if exc.errno not in kernel.GONE:
                reason = exc.strerror or os.strerror(exc.errno or 0)
                done.left.append(f"{who} cannot be changed: {reason}")
        except ValueError as exc:
            done.left.append(f"{who} cannot be read: {exc}")

    weight = domain.weight if wanted is found else domain.safe_weight
    writes = None if dry_run else may
    attempt(domain.name, lambda: _weight(domain, weight, done, writes))
    for index, vcpu in sorted(domain.vcpus.items()):
        who = f"{domain.name} vCPU {index}"
        attempt(who, partial(_vcpu, who, vcpu, wanted, done, writes))
    return done


def _weight(domain: Domain, wanted: int, done: Done, may: Callable[[], bool] | None) -> None:
    """``may``: as in ``_vcpu``."""
    if not (wanted and domain.group) or kernel.weight(domain) == wanted:
        return
    if may is not None:
        if not may():
            return
        kernel.set_weight(domain, wanted)
    done.changes.append(f"{domain.name}: weight {wanted}")


def _vcpu(who: str, vcpu: Vcpu, wanted: Target, done: Done, may: Callable[[], bool] | None) -> None:
    """Write until what is in force is what is wanted for the pCPUs in force.

    Somebody may give the vCPU other pCPUs between the reading and the write. ``may``: ``None`` in a
    dry run.
    """
    before: tuple[target.Step, ...] = ()
    with kernel.opened(vcpu.group, vcpu.inode) as folder:
        thread = kernel.VcpuTarget(vcpu, folder)
        for _ in range(ATTEMPTS):
            now = thread.state()
            todo = target.steps(now, wanted(vcpu, now))
            if not todo or todo == before:  # its cpuset may permit no more
                return
            before, done.vcpus = todo, True
            change = f"{who}: {', '.join(map(target.described, todo))}"
            if may is None:
                done.changes.append(change)
                return
            for step in todo:
                if not may():
                    return
                thread.take(step)
            done.changes.append(change)
