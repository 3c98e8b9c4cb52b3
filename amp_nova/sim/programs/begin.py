"""Gives every vCPU of a guest its program."""

import random
from collections.abc import Sequence

from amp_nova.sim.programs.barrier import Barriers
from amp_nova.sim.programs.io import Transfers
from amp_nova.sim.programs.lock import Locking
from amp_nova.sim.programs.requests import Queue
from amp_nova.sim.scenarios.workload import Workload
from amp_nova.sim.vcpu import Program, SimVcpu


def begin(vcpus: Sequence[SimVcpu], whole: Workload, chance: random.Random, now_s: float) -> None:
    """Begin the programs of a guest that starts now; ``whole`` is what all its vCPUs share."""
    queue = None if whole.requests is None else Queue(whole.requests, now_s, chance)
    others = []
    for vcpu in vcpus:
        io = vcpu.work.behaviour.workload.io
        program = queue if io is None else Transfers(io)
        if program is None:
            others.append(vcpu)
        else:
            vcpu.work.program = program
            program.begin(vcpu, now_s)
    shared: Program = Barriers(others, spins=whole.spins)
    if whole.lock is not None:
        shared = Locking(whole.lock, others)
    for vcpu in others:
        vcpu.work.program = shared
