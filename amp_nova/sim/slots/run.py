"""The hypervisor's scheduler itself, in slots of 10 ms, where a paper puts its algorithm there.

An agent decides every few seconds and leaves time slices to the kernel. chen2014 replaces the
scheduler instead: every slot it says who runs on which core, every cycle of three slots it hands
out resources. Here that scheduler, and the two that the paper compares it with, run the guests of a
scenario. Everything else (work, barriers, phases, meters) is the simulated host's.

What a slot decides holds until it ends, but a core whose vCPU goes to sleep takes another at once.
A vCPU that waits at a barrier does not sleep: it spins, as the paper's do on locks, and its slots
are lost. The guest's time alone is progress; a switch and a move cost nothing.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from amp_nova.exceptions import ConfigInvalid
from amp_nova.policies.aash import AashPolicy
from amp_nova.policies.api import Policy
from amp_nova.policies.credit import CreditPolicy
from amp_nova.policies.integrated import IntegratedPolicy
from amp_nova.sim import report
from amp_nova.sim.cores import Share
from amp_nova.sim.guest import SimVcpu
from amp_nova.sim.host import SimHost
from amp_nova.sim.report import Result
from amp_nova.sim.scenarios.scenario import Scenario
from amp_nova.sim.slots.board import Board
from amp_nova.sim.slots.credit import AashSlots, CreditSlots
from amp_nova.sim.slots.integrated import IntegratedSlots
from amp_nova.sim.windows import Delivered

SLOT_S = 0.01
CYCLE_SLOTS = 3


class SlotScheduler(Protocol):
    """One scheduler: it moves vCPUs on the board it was made with."""

    def wake(self, vcpu: SimVcpu) -> None:
        """Find a queue for a vCPU that wants to run."""

    def end(self, name: str) -> None:
        """All work of an instance is done."""

    def charge(self, vcpu: SimVcpu, pcpu: int) -> None:
        """A slot has passed, and this vCPU is on this core."""

    def allocate(self, slots: int) -> None:
        """A cycle of so many slots begins."""

    def select(self) -> None:
        """A slot begins: who runs on every core."""

    def fill(self) -> None:
        """Within a slot: work for cores that idle."""


class SlotCores:
    """Takes the place of the simulated host's own scheduler."""

    def __init__(self, board: Board, scheduler: SlotScheduler) -> None:
        self._board = board
        self._scheduler = scheduler
        self._begins = True
        self._slot = 0

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU wants to run, or need not wait at its barrier any more."""
        if vcpu in self._board:
            self._board.stirred[vcpu] = None
        else:
            self._scheduler.wake(vcpu)

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU has nothing to do; one at a barrier spins."""
        if vcpu.blocked and vcpu.guest.turn.wants:
            return
        self._board.leave(vcpu)
        if all(v.done for v in vcpu.guest.vcpus):
            self._scheduler.end(vcpu.guest.guest.name)

    def changed(self, vcpu: SimVcpu) -> None:
        """Nobody gives a vCPU an affinity or a limit here."""
        raise AssertionError(vcpu)

    def share_out(self) -> Mapping[SimVcpu, Share]:
        """Whole cores or nothing, for those for whom that is news."""
        if self._begins:
            if self._slot % CYCLE_SLOTS == 0:
                self._scheduler.allocate(CYCLE_SLOTS)
            self._scheduler.select()
        else:
            self._scheduler.fill()
        self._begins = False
        stirred = sorted(self._board.stirred, key=lambda v: v.order)
        self._board.stirred.clear()
        return {
            v: Share({v.pcpu: 1.0} if v.pcpu is not None and self._board.runs(v) else {}, 0.0)
            for v in stirred
        }

    def next_slot(self) -> None:
        """A slot is over, and paid for."""
        for vcpu in self._board:
            # A guest that sleeps spins no more.
            if vcpu.blocked and not vcpu.guest.turn.wants:
                self._board.leave(vcpu)
        for pcpu, runner in self._board.running.items():
            if runner is not None:
                self._scheduler.charge(runner, pcpu)
        self._slot += 1
        self._begins = True


def scheduler(policy: Policy, scenario: Scenario, board: Board) -> SlotScheduler:
    """The scheduler of a policy; ``ConfigInvalid`` when it has none."""
    if isinstance(policy, IntegratedPolicy):
        return IntegratedSlots(board, scenario.guests, policy)
    if isinstance(policy, AashPolicy):
        return AashSlots(board, scenario.seed)
    if isinstance(policy, CreditPolicy):
        return CreditSlots(board, scenario.seed)
    raise ConfigInvalid(
        f"slots=true is not for policy '{policy.name}': it runs credit, aash and integrated"
    )


def run(
    scenario: Scenario, policy: Policy, progress: Callable[[float], None] | None = None
) -> Result:
    """Run a scenario slot by slot; the result is that of ``sim.run``.

    ``ConfigInvalid`` for another policy, or when a guest books capacity: there is no agent to keep
    it.
    """
    for guest in scenario.guests:
        if any(v.kind != "best_effort" for v in guest.booking.vcpus):
            raise ConfigInvalid(
                f"slots=true keeps no bookings, and VM '{guest.name}' has one: take it out"
            )
    board = Board(scenario.topology)
    made = scheduler(policy, scenario, board)
    cores = SlotCores(board, made)
    host = SimHost(
        scenario.topology, scenario.guests, scenario.seed, scenario.reference_ips, scheduler=cores
    )
    slot = 0
    while host.now_s < scenario.duration_s:
        slot += 1
        # Multiplied, not added up: slots stay where they belong.
        host.advance(min(slot * SLOT_S, scenario.duration_s))
        cores.next_slot()
        if progress is not None:
            progress(host.now_s)
    outcomes = {g.name: host.outcome(g.name) for g in scenario.guests}
    vms = {
        g.name: report.of_guest(g, outcomes[g.name], Delivered(), scenario.reference_ips)
        for g in scenario.guests
    }
    return report.of_run(scenario, policy.name, vms, outcomes.values())
