# SPDX-License-Identifier: Apache-2.0
"""Builders for tests of the calibration, including FAKE measurements."""

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from amp_nova.hardware.calibration import Calibration, Reference, summarise
from amp_nova.hardware.slices import Run, Slice, SpeedSample
from amp_nova.host.calibration.kernels import INTEGER
from amp_nova.host.calibration.provenance import of_run
from amp_nova.model.topology import CoreType, PCpu, Topology

ROUND = 88
"""Slices of a round on two core types."""
NOW = datetime(2026, 11, 21, tzinfo=UTC)
"""When ``build`` makes a calibration."""


class FakeCores:
    """FAKE cores of constant speed, for ``kernels.measure``; ``measured`` has what ran where."""

    def __init__(self, speeds: dict[int, float] | None = None) -> None:
        self.speeds = speeds or {0: 2000.0, 1: 1000.0}
        self.alternating = 1.0
        """Factor of every other round on the pCPU 0: noise."""
        self.preempted = False
        self.measured: list[tuple[Run, tuple[int, ...]]] = []

    def measure(self, run: Run, pcpus: Sequence[int]) -> Slice:
        """A slice that pretends to take 0.1 s, of which it gets half if it is preempted."""
        number = len(self.measured)
        self.measured.append((run, tuple(pcpus)))
        rate = self.speeds[pcpus[0]] * (
            self.alternating if number // ROUND % 2 and not pcpus[0] else 1
        )
        return Slice(None if self.preempted else rate, 0.05 if self.preempted else 0.1, 0.1)


def sample(
    core_type="slow", ops=1000.0, number=0, kernel="integer", smt_busy=False, ips=None, **counted
):
    """The sample of a round."""
    return SpeedSample(number, core_type, kernel, smt_busy, 0, ops, ips, **counted)


def topology(types: dict[str, tuple[int, ...]] | None = None, **values) -> Topology:
    """Core types, slowest first, with their pCPUs; one thread a core."""
    types = types or {"slow": (1,), "fast": (0,)}
    return Topology(
        core_types=tuple(CoreType(name) for name in types),
        pcpus=tuple(PCpu(i, name, (i,)) for name, ids in types.items() for i in ids),
        **({"reference": next(iter(types)), "source": "test"} | values),
    )


def machine_files(
    root: Path,
    model: str = "Model A",
    microcode: str = "0x1",
    governor: str = "performance",
    release: str = "6.1.0",
) -> Path:
    """The files below a root that say which machine it is."""
    files = {
        "proc/cpuinfo": "".join(
            f"processor\t: {i}\nmodel name\t: {model}\nmicrocode\t: {microcode}\n\n" for i in (0, 1)
        ),
        "proc/sys/kernel/osrelease": release,
        "sys/devices/system/cpu/smt/control": "off",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": governor,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def build(root, reference="slow", foreign=None, pcpus=None, **values) -> Calibration:
    """A calibration of the machine below root: fast is twice as fast as slow."""
    samples = tuple(
        sample(name, ops, number, ips=ops * 1e6)
        for number in range(6)
        for name, ops in (("slow", 1000.0), ("fast", 2000.0), ("other", 500.0))
    )
    pcpus = pcpus or {"slow": (1,), "fast": (0,)}
    results = summarise(samples, pcpus, (INTEGER,), Reference(reference, samples))
    made = dataclasses.replace(
        of_run(1, 6, False, False, str(root)), date=NOW.isoformat(timespec="seconds")
    )
    fields = {
        "reference": reference,
        "reference_host": foreign,
        "provenance": made,
        "kernels": (INTEGER,),
        "core_types": results,
        "nominal_ips_missing": None,
        "warnings": (),
    }
    return Calibration(**(fields | values))
