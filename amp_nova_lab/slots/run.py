# SPDX-License-Identifier: Apache-2.0
"""Runs a scenario under a hypervisor scheduler that decides in slots of 10 ms.

An agent decides every few seconds and leaves time slices to the kernel. chen2014 replaces the
scheduler instead: every slot it decides which vCPU runs on which core, and every cycle of three
slots it hands out resources. That scheduler and the two that the paper compares it with run the
guests of a scenario here. Everything else (work, barriers, phases, meters) is the simulated host's.

A decision is valid until the slot ends, but a core whose vCPU goes to sleep takes another at once.
A vCPU that waits at a barrier does not sleep: like the paper's programs on locks it spins, and its
slots are lost. Context switches and moves cost nothing.
"""

from collections.abc import Mapping

from amp_nova.exceptions import ConfigInvalid
from amp_nova.policies.api import Policy
from amp_nova_lab import report
from amp_nova_lab.guest import RunningShare, SimVcpu
from amp_nova_lab.host import SimHost
from amp_nova_lab.policies.aash import BY_VCPU, AashPolicy
from amp_nova_lab.policies.credit import CreditPolicy
from amp_nova_lab.policies.integrated import IntegratedPolicy
from amp_nova_lab.report import Result
from amp_nova_lab.scenarios.scenario import Scenario
from amp_nova_lab.slots.board import Board
from amp_nova_lab.slots.credit import AashSlots, CreditSlots
from amp_nova_lab.slots.integrated import IntegratedSlots

SLOT_S = 0.01
CYCLE_SLOTS = 3

SlotScheduler = CreditSlots | IntegratedSlots


class SlotCores:
    """Replaces the simulated host's own scheduler."""

    def __init__(self, board: Board, scheduler: SlotScheduler) -> None:
        self._board = board
        self._scheduler = scheduler
        self._begins = True
        self._slot = 0

    def wake(self, vcpu: SimVcpu) -> None:
        """A vCPU became runnable, or no longer waits at its barrier."""
        if vcpu in self._board:
            self._board.changed[vcpu] = None
        else:
            self._scheduler.wake(vcpu)

    def sleep(self, vcpu: SimVcpu) -> None:
        """A vCPU has nothing to run; one at a barrier spins."""
        work = vcpu.work
        assert work.program is not None
        if work.blocked and work.program.together and work.behaviour.turn.wants:
            return
        self._board.leave(vcpu)
        if all(v.work.done for v in vcpu.guest.vcpus):
            self._scheduler.end(vcpu.key[0])

    def changed(self, vcpu: SimVcpu) -> None:
        """Nothing to do: affinities, limits and weights have no effect here."""

    def reschedule(self) -> Mapping[SimVcpu, RunningShare]:
        """A whole core or nothing, for every vCPU that started or stopped running."""
        if self._begins:
            if self._slot % CYCLE_SLOTS == 0:
                self._scheduler.allocate(CYCLE_SLOTS)
            self._scheduler.select()
        else:
            self._scheduler.fill()
        self._begins = False
        changed = sorted(self._board.changed, key=lambda v: v.order)
        self._board.changed.clear()
        return {
            v: RunningShare(
                {v.pcpu: 1.0} if v.pcpu is not None and self._board.runs(v) else {}, 0.0
            )
            for v in changed
        }

    def next_slot(self) -> None:
        """End a slot and debit the vCPUs that had a core."""
        for vcpu in self._board:
            # A guest that went to sleep spins no more.
            if vcpu.work.blocked and not vcpu.work.behaviour.turn.wants:
                self._board.leave(vcpu)
        for pcpu, runner in self._board.running.items():
            if runner is not None:
                self._scheduler.debit(runner, pcpu)
        self._slot += 1
        self._begins = True


def scheduler(policy: Policy, scenario: Scenario, board: Board) -> SlotScheduler:
    """The scheduler of a policy; ``ConfigInvalid`` if it has none."""
    if isinstance(policy, IntegratedPolicy):
        return IntegratedSlots(board, scenario.guests, policy)
    if isinstance(policy, AashPolicy):
        return AashSlots(board, scenario.seed, by_vcpu=BY_VCPU in policy.printed)
    if isinstance(policy, CreditPolicy):
        return CreditSlots(board, scenario.seed)
    raise ConfigInvalid(
        f"slots=true does not support policy '{policy.name}': use credit, aash or integrated"
    )


def run(scenario: Scenario, policy: Policy) -> Result:
    """Run a scenario slot by slot; the result is that of ``sim.run``.

    ``ConfigInvalid`` if the policy has no slot scheduler, or if a guest books capacity: no agent
    keeps bookings here.
    """
    for guest in scenario.guests:
        if guest.booking.booked:
            raise ConfigInvalid(
                f"slots=true does not keep bookings: remove that of VM '{guest.name}'"
            )
    board = Board(scenario.topology)
    cores = SlotCores(board, scheduler(policy, scenario, board))
    host = SimHost(
        scenario.topology,
        scenario.guests,
        scenario.seed,
        scheduler=cores,
        machine=scenario.machine,
    )
    slot = 0
    while host.now_s < scenario.duration_s:
        slot += 1
        # Multiplied rather than added up, so that slots do not drift.
        host.advance(min(slot * SLOT_S, scenario.duration_s))
        cores.next_slot()
    return report.of_run(scenario, policy.name, host, {})
