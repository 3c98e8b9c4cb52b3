"""Builders for tests of the calibration, including a FAKE stress-ng."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

from amp_nova.hardware.calibration import (
    SCHEMA,
    Calibration,
    Kernel,
    Reference,
    Sample,
    summarise,
)
from amp_nova.host.calibration.provenance import of_run
from amp_nova.model.topology import CoreType, PCpu, Topology

INTEGER = Kernel("integer", True, "--cpu 1 --cpu-method int64")
FLOAT = Kernel("float", True, "--cpu 1 --cpu-method double")
MEMORY = Kernel("memory", False, "--matrix 1")
NOW = datetime(2026, 11, 21, tzinfo=UTC)
"""When ``build`` makes a calibration."""

FAKE = """#!/bin/sh
# This is a FAKE stress-ng for tests: it measures nothing and prints what the test wants.
[ "$1" = --version ] && {{ echo "stress-ng, version {version} (a fake)"; exit; }}
echo "$*" >> "{calls}"
[ -n "{fails}" ] && {{ echo "stress-ng: error: {fails}" >&2; exit 2; }}
while [ $# -gt 0 ]; do
    case $1 in
        --taskset) pcpu=$2 ;;
        --timeout) seconds=${{2%s}} ;;
        --yaml) result=$2 ;;
    esac
    shift
done
[ -z "$result" ] && exit 0  # the load on a sibling
if [ -e "{text}" ]; then cp "{text}" "$result"; exit; fi
case $pcpu in
{speeds}
esac
cpu_s=$((seconds * {share}))  # thousandths
cat > "$result" <<END
metrics:
    - stressor: cpu
      bogo-ops: $((speed * cpu_s))e-3
      wall-clock-time: $seconds
      user-time: ${{cpu_s}}e-3
      system-time: 0.0
END
"""


def fake_stress_ng(
    folder: Path,
    speeds: dict[int, float] | None = None,
    version: str = "0.15.06",
    steal: float = 0.0,
    fails: str = "",
    text: str = "",
) -> Path:
    """Put a FAKE stress-ng into a folder; it logs its arguments into ``calls`` beside itself."""
    folder.mkdir(exist_ok=True)
    path = folder / "stress-ng"
    if text:
        (folder / "text").write_text(text)
    rates = {pcpu: round(1000 * speed) for pcpu, speed in (speeds or {0: 2.0, 1: 1.0}).items()}
    path.write_text(
        FAKE.format(
            version=version,
            calls=folder / "calls",
            text=folder / "text",
            fails=fails,
            share=round(1000 * (1 - steal)),
            speeds="\n".join(f"{pcpu}) speed={rate} ;;" for pcpu, rate in rates.items()),
        )
    )
    path.chmod(0o755)
    return path


def sample(
    core_type="slow", ops=1000.0, number=0, kernel="integer", smt_busy=False, share=1.0, ips=None
) -> Sample:
    """A run of one CPU second."""
    return Sample(number, core_type, kernel, smt_busy, 0, ops, 1.0, 1.0 / share, ips)


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
        of_run("0.15.06", 1, 6, False, str(root)), date=NOW.isoformat(timespec="seconds")
    )
    fields = {
        "schema": SCHEMA,
        "reference": reference,
        "reference_host": foreign,
        "provenance": made,
        "kernels": (INTEGER,),
        "core_types": results,
        "nominal_ips_missing": None,
        "warnings": (),
        "samples": samples,
    }
    return Calibration(**(fields | values))
