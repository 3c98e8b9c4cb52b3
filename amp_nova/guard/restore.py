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
    """Whether a vCPU changes, and not only the idle class or the weight."""


def always() -> bool:
    """Nothing ends the right to write."""
    return True


def restore(
    domain: Domain,
    wanted: Target,
    *,
    dry_run: bool = False,
    precedence: bool = False,
    may: Callable[[], bool] = always,
) -> Done:
    """Restore a domain; a target that is gone or has been replaced is left alone.

    The domain leaves the idle class first, because a guest in it may get no CPU time at all.
    ``precedence``: raise the weight of a booking, because best effort leaves the idle class.
    ``may``: asked right before each write to a vCPU; no more is written once it says no.
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

    attempt(domain.name, lambda: _idle(domain, wanted is found, done, dry_run))
    if wanted is found or precedence:
        attempt(domain.name, lambda: _weight(domain, wanted is found, done, dry_run))
    for index, vcpu in sorted(domain.vcpus.items()):
        who = f"{domain.name} vCPU {index}"
        attempt(who, partial(_vcpu, who, vcpu, wanted, done, None if dry_run else may))
    return done


def _idle(domain: Domain, enter: bool, done: Done, dry_run: bool) -> None:
    """Restore the idle flag that was found; into the idle class only with ``enter``."""
    now = kernel.idle(domain)
    if now is None or now == domain.idle or (domain.idle and not enter):
        return
    done.changes.append(f"{domain.name}: {'enters' if domain.idle else 'leaves'} the idle class")
    if not dry_run:
        kernel.set_idle(domain, domain.idle)


def _weight(domain: Domain, original: bool, done: Done, dry_run: bool) -> None:
    if not domain.weight or kernel.idle(domain) or not (now := kernel.weight(domain)):
        return  # the idle class has no weight
    wanted = domain.weight if original else target.weight(domain, now)
    if wanted == now:
        return
    done.changes.append(f"{domain.name}: weight {wanted}")
    if not dry_run:
        kernel.set_weight(domain, wanted)


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
