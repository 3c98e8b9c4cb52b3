"""Brings a recorded domain into its safe state, or back to what the agent found."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from amp_nova.guard import kernel, target
from amp_nova.guard.record import Domain, State, Vcpu

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


def restore(domain: Domain, wanted: Target, *, dry_run: bool = False) -> Done:
    """Restore a domain; a target that is gone or has been replaced is left alone."""
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
    attempt(domain.name, lambda: _weight(domain, weight, done, dry_run))
    for index, vcpu in sorted(domain.vcpus.items()):
        who = f"{domain.name} vCPU {index}"
        attempt(who, partial(_vcpu, who, vcpu, wanted, done, dry_run))
    return done


def _weight(domain: Domain, wanted: int, done: Done, dry_run: bool) -> None:
    if not (wanted and domain.group) or kernel.weight(domain) == wanted:
        return
    done.changes.append(f"{domain.name}: weight {wanted}")
    if not dry_run:
        kernel.set_weight(domain, wanted)


def _vcpu(who: str, vcpu: Vcpu, wanted: Target, done: Done, dry_run: bool) -> None:
    with kernel.opened(vcpu.group, vcpu.inode) as folder:
        thread = kernel.VcpuTarget(vcpu, folder)
        now = thread.state()
        todo = target.steps(now, wanted(vcpu, now))
        if not todo:
            return
        done.vcpus = True
        done.changes.append(f"{who}: {', '.join(map(target.described, todo))}")
        for step in () if dry_run else todo:
            thread.take(step)
