"""Gives every vCPU of a guest its program."""

import random
from collections.abc import Sequence

from amp_nova.sim.programs.barrier import Barriers
from amp_nova.sim.programs.io import Transfers
from amp_nova.sim.programs.requests import Queue
from amp_nova.sim.scenarios.programs import Requests
from amp_nova.sim.vcpu import SimVcpu


def begin(
    vcpus: Sequence[SimVcpu], requests: Requests | None, chance: random.Random, now_s: float
) -> None:
    """Begin the programs of a guest that starts now; ``requests`` are of all its vCPUs."""
    queue = None if requests is None else Queue(requests, now_s, chance)
    others = []
    for vcpu in vcpus:
        io = vcpu.work.behaviour.workload.io
        program = queue if io is None else Transfers(io)
        if program is None:
            others.append(vcpu)
        else:
            vcpu.work.program = program
            program.begin(vcpu, now_s)
    barriers = Barriers(others)
    for vcpu in others:
        vcpu.work.program = barriers
