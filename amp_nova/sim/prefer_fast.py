"""The simulated host's own scheduler where Linux knows which CPUs are fast.

Linux never leaves these idle while slower ones are in use, in two ways (``kernel/sched/fair.c``):

* ``SD_ASYM_PACKING`` (x86: hybrid CPUs, and preferred cores by ITMT or amd_pstate): an idle CPU
  pulls even the only task of a CPU with a lower priority, from the lowest priority first, if all
  threads of its own core are idle (``sched_asym``, ``update_sd_pick_busiest``,
  ``asym_active_balance``). Wakeups have no preference.
* ``SD_ASYM_CPUCAPACITY`` (Arm, RISC-V, and hybrid x86 without SMT): an idle CPU pulls a task that
  needs more than 80 % of the capacity of its CPU (``update_misfit_status``,
  ``update_sd_pick_busiest``). Such a task wakes up on an idle CPU that is large enough, or else on
  the largest that is idle (``select_idle_capacity``).

One model is enough for both: a pull at once makes up for a wakeup without preference, and a vCPU
that always works is a misfit everywhere but on the fastest core type. Where it differs from Linux,
Linux does less for fast cores. Left out are:

* the time until an idle CPU pulls, some milliseconds (``nohz_balancer_kick``): with 4 or 12 ms, all
  vCPUs together do less than 1 % less on the mixes of ``tests/benchmarks/test_mixes.py``;
* small tasks, which stay on slow CPUs if capacity decides, and Energy Aware Scheduling;
* the limits of scheduling domains, such as NUMA nodes;
* that the load of crowded CPUs is balanced by their capacity;
* that an idle core of any speed relieves a core with two busy threads.
"""

from collections.abc import Mapping, Sequence

from amp_nova.sim.cores import Cores
from amp_nova.sim.vcpu import SimVcpu


class PreferFast(Cores):
    """All pCPUs of a host whose kernel prefers the fast ones."""

    def __init__(
        self,
        llc: Mapping[int, int | None],
        preference: Sequence[int],
        speeds: Mapping[int, float],
        siblings: Mapping[int, Sequence[int]],
        for_vcpus: float = 1.0,
    ) -> None:
        """``speeds``: of each pCPU; ``siblings``: the other hardware threads of its core."""
        self._fastest_first = sorted(preference, key=lambda p: -speeds[p])
        super().__init__(llc, self._fastest_first, for_vcpus)
        self._speeds, self._siblings = speeds, siblings

    def _balance(self) -> None:
        super()._balance()
        # Terminates: a move to a faster pCPU that is idle does not make the loads less even.
        while (move := self._pull_up()) is not None:
            self.sleep(move[0])
            self._enqueue(*move)
            super()._balance()

    def _pull_up(self) -> tuple[SimVcpu, int] | None:
        """A vCPU to bring to an idle pCPU, from the slowest pCPU that has one."""
        queues, speeds = self._queues, self._speeds
        for target in self._fastest_first:
            if queues[target] or any(queues[p] for p in self._siblings[target]):
                continue
            for source in reversed(self._fastest_first):
                if speeds[source] >= speeds[target]:
                    break
                for vcpu in reversed(queues[source]):
                    if target in vcpu.pcpus:
                        return vcpu, target
        return None
