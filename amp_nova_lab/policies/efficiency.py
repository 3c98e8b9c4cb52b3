# SPDX-License-Identifier: Apache-2.0
"""The efficiency of a fast core's use by kwon2011: instructions per cycle times utilization."""

from collections.abc import Mapping

from amp_nova.hardware.effective_speed import gain, speed
from amp_nova.model.observation import VcpuKey
from amp_nova.policies.api import HostView, VcpuView
from amp_nova.policies.placing.core_shares import Score
from amp_nova.policies.placing.deficit import Accounts
from amp_nova.policies.placing.score import DIGITS, in_favour, mean_known


def printed_efficiency(vcpu: VcpuView) -> float | None:
    """IPC x utilization as printed (kwon2011 section 2.1): as counted, wherever the vCPU runs."""
    ipc, ran = vcpu.ipc, vcpu.utilization_ratio
    return None if ipc is None or ran is None else round(ipc * ran, DIGITS)


def efficiency(view: HostView, accounts: Accounts, hysteresis_ratio: float) -> Score:
    """IPC x utilization (kwon2011 section 2.1), times ``amp:weight``.

    Utilization is demand, the share of time a vCPU wants to run: the host, not the vCPU, causes
    its waits. vCPUs on fast cores are favoured by ``hysteresis_ratio``. If instructions are not
    counted, the flavor's hint replaces the IPC.
    """
    rates = _ipcs(view)

    def score(vcpu: VcpuView) -> float | None:
        ipc, demand = rates.get(vcpu.key), vcpu.demand_ratio
        if ipc is None or (demand is None and vcpu.hint is None):
            return None
        favour = in_favour(accounts[vcpu.key], hysteresis_ratio)
        demand_ratio = 1.0 if demand is None else demand
        return round(ipc * demand_ratio * vcpu.weight * favour, DIGITS)

    return score


def _ipc_on_slowest(view: HostView, vcpu: VcpuView) -> float | None:
    """Instructions per cycle, converted to the slowest core type if the speedup was measured.

    A workload that waits for memory has a lower IPC on a fast core than on a slow one. Without the
    conversion two similar vCPUs would change places forever, each scoring better on a slow core. An
    estimated speedup would not do: it follows from the same IPC, and may be far off.
    """
    types = view.topology.core_types
    speedup = vcpu.speedup if vcpu.sampled else None
    if vcpu.ipc is None or speedup is None or len(vcpu.cpu_s) != len(types):
        return vcpu.ipc
    at = vcpu.cpu_s.index(max(vcpu.cpu_s))
    faster = gain(types, at)
    return None if faster is None else vcpu.ipc * faster / speed(types, at, speedup)


def _ipcs(view: HostView) -> Mapping[VcpuKey, float]:
    """The IPC of each vCPU with counters or a hint.

    A hint halfway between 1 and the hardware's speedup stands for the mean counted IPC, and other
    hints stand for IPCs in proportion.
    """
    ipcs = {v.key: ipc for v in view.vcpus if (ipc := _ipc_on_slowest(view, v)) is not None}
    hints = {v.key: v.hint for v in view.vcpus if v.hint is not None and v.key not in ipcs}
    if not hints:
        return ipcs
    mean = mean_known(ipcs.values(), 1.0)
    types = view.topology.core_types
    most = gain(types, len(types) - 1) or max(hints.values())
    return ipcs | {key: mean * hint / ((1.0 + most) / 2.0) for key, hint in hints.items()}
