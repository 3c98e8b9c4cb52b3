"""The writer's default back end: a vCPU's own CPU cgroup, and the affinity of its thread.

Nothing enters libvirt's definition, so nothing travels with a live migration to a host where it
would be wrong.
"""

import os

from amp_nova.host.vcpu_threads import VcpuThread, VcpuThreads
from amp_nova.model.allocation import Step
from amp_nova.model.observation import VcpuKey


class CgroupBackend:
    """Writes to the kernel, within the cpusets of libvirt; a write takes a few microseconds."""

    in_definition = False

    def take(self, _key: VcpuKey, thread: VcpuThread, step: Step) -> None:
        """Write one step; ``ActuationFailed`` if the kernel then reports another limit."""
        if step.pcpus is not None:
            move_thread(thread.tid, step.pcpus)
            return
        if step.bandwidth is not None and thread.group.burst_us:
            thread.group.forbid_burst()
        if thread.group.bandwidth() != step.bandwidth:  # any write would refill the group
            thread.group.set_bandwidth(step.bandwidth)

    def set_weight(self, _resource: str, threads: VcpuThreads, weight: int) -> None:
        """Set a domain's CPU weight; ``ActuationFailed`` if the kernel then reports another."""
        if threads.domain is not None:
            threads.domain.set_weight(weight)


def move_thread(tid: int, pcpus: frozenset[int]) -> None:
    """Set the affinity of a thread; ``OSError`` (``GONE``) once it has ended."""
    os.sched_setaffinity(tid, pcpus)
