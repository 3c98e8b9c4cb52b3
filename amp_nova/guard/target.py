"""What shall be in force for a vCPU or domain, decided from its record and its present state."""

from amp_nova.guard.record import Limit, PCpus, State, Vcpu

Step = PCpus | Limit
"""One write: an affinity or a limit."""


def safe(vcpu: Vcpu, now: State) -> State:
    """The safe state of a vCPU.

    A booked vCPU stays on its present core type and gets the limit for that type. If its affinity
    is not within one core type, because a move was interrupted or somebody changed it, it gets the
    recorded affinity.
    """
    wanted = vcpu.safe
    if wanted.leave:
        return now
    if not wanted.limits:
        if wanted.pcpus is None:
            # The agent keeps to what libvirt allows: somebody else gave it other pCPUs.
            others = now.pcpus - vcpu.allowed - vcpu.found.pcpus
            return State(vcpu.found.limit, now.pcpus if others else vcpu.found.pcpus)
        kept = now.pcpus and now.pcpus <= wanted.pcpus
        return State(vcpu.found.limit, now.pcpus if kept else wanted.pcpus)
    for pcpus in (now.pcpus, wanted.pcpus):
        for there, limit in wanted.limits:
            if pcpus and pcpus <= there:
                return State(limit, pcpus)
    return now


def steps(now: State, wanted: State) -> tuple[Step, ...]:
    """The writes from one state to another, ordered so that none gives more than both states do."""
    found: list[Step] = []
    if now.pcpus != wanted.pcpus and wanted.pcpus:
        found.append(wanted.pcpus)
    unlimited = now.limit.quota_us is None and wanted.limit.quota_us is None
    if now.limit != wanted.limit and not unlimited:
        lowered = wanted.limit.cores <= now.limit.cores
        found.insert(0 if lowered else len(found), wanted.limit)
    return tuple(found)


def described(step: Step) -> str:
    """A step in words."""
    if isinstance(step, Limit):
        if step.quota_us is None:
            return "no quota"
        burst = f", burst {step.burst_us} us" if step.burst_us else ""
        return f"quota {step.quota_us}/{step.period_us} us{burst}"
    runs: list[list[int]] = []
    for pcpu in sorted(step):
        if runs and pcpu == runs[-1][-1] + 1:
            runs[-1][1:] = [pcpu]
        else:
            runs.append([pcpu])
    return f"pCPUs {','.join('-'.join(map(str, run)) for run in runs)}"
