# SPDX-License-Identifier: Apache-2.0
"""``amp-nova calibrate``: measures the speed of each core type and writes the calibration file."""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Sequence

from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.cmd.arguments import add_config_file, whole
from amp_nova.cmd.command import Answer, Report, progress
from amp_nova.cmd.topology import calibration_table
from amp_nova.exceptions import CalibrationInvalid, ConfigInvalid
from amp_nova.hardware import calibration
from amp_nova.hardware.calibration import Calibration, Reference
from amp_nova.hardware.operator_types import SOURCE as CONFIGURED
from amp_nova.hardware.slices import SpeedSample
from amp_nova.host.calibration import file, idleness, kernels, provenance
from amp_nova.host.calibration.kernels import KERNELS
from amp_nova.host.counters import perf
from amp_nova.host.machine import load_topology
from amp_nova.host.sysfs import read_facts
from amp_nova.model.topology import Topology

REMEDY = (
    "raise --repeat to measure longer, pass --force to write it all the same, or set the"
    " coefficient in [topology] core_type"
)
REPEAT = 6
"""The fewest rounds whose range encloses the median with 95 % confidence."""
LONGER, LONGER_IN_SERVICE = 3, 10
"""Measuring goes on until the result is good, or for so many times the rounds."""
SHARE_PERCENT = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is determined before the measurement."""

    topology: Topology
    pcpus: dict[str, int]
    """The pCPU to measure of each core type."""
    reference: Reference | None
    """The reference core of another host, ``None`` if this host has it."""
    reference_host: str | None
    configured: str | None
    """The core type that ``[topology] reference`` names."""
    others: tuple[Calibration, ...]
    """The calibrations of other CPU models that stay in the file."""
    warnings: tuple[str, ...]


class Calibrate(Report):
    """Measure the coefficient and nominal Ips of every core type"""

    _epilog = """examples:
  amp-nova calibrate
  amp-nova calibrate --repeat 3 --output trial.json    another file than the agent's
  amp-nova calibrate --in-service                  beside guests, on 5 % of a pCPU
  amp-nova calibrate --reference slow-host.json    the reference core is on another host
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--output", metavar="FILE", help="write here; default: [topology] calibration_file")
        add(
            "--reference",
            metavar="FILE",
            help="calibration of the host that has the reference core",
        )
        count = whole(1, 3600)
        add("--repeat", type=count, default=REPEAT, metavar="N", help="rounds; default %(default)s")
        add(
            "--seconds",
            type=count,
            default=1,
            metavar="S",
            help="time for each kernel on each core type in a round; default 1",
        )
        add(
            "--in-service",
            type=whole(1, 100),
            nargs="?",
            const=SHARE_PERCENT,
            metavar="PERCENT",
            help="measure beside guests, on at most this share of one pCPU, and only while it is"
            " idle; default %(const)s",
        )
        add(
            "--merge",
            action="store_true",
            help="keep what the file has of hosts with other CPU models",
        )
        add("--force", action="store_true", help="write even noisy results")
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """Measure and write; raises ``AmpError`` and leaves the old file on failure."""
        conf = options.load(files=args.config_file)
        output = args.output or conf.topology.calibration_file
        task = _prepare(args, conf, output)
        try:
            samples = _measure(task, args)
        except KeyboardInterrupt:
            progress("")
            self.log.error("interrupted; %s is unchanged", output)
            raise
        result = _conclude(task, args, samples)
        if noisy := calibration.noise(result.core_types):
            if not args.force:
                raise CalibrationInvalid(f"{noisy}; nothing was written: {REMEDY}")
            result = dataclasses.replace(
                result, warnings=(*result.warnings, f"forced although {noisy}")
            )
        file.write(output, [*task.others, result])
        return calibration_table(result, f"written to {output}")


def _prepare(args: argparse.Namespace, conf: cfg.ConfigOpts, output: str) -> Task:
    """Detect every possible error before minutes of measuring."""
    named = conf.topology.reference
    if conf.topology.root != "/":
        raise ConfigInvalid(
            f"[topology] root is '{conf.topology.root}', a recording; set it to '/' to measure this"
            " machine"
        )
    # Ignore the old file, which may be damaged, and a reference core on another host.
    conf.set_override("calibration_file", "", "topology")
    conf.set_override("reference", None, "topology")
    topology = load_topology(conf)
    types = [t.name for t in topology.core_types]
    reference, host = _foreign(args, types, named) if args.reference else (None, None)
    if reference and named and named != reference.name.partition("@")[0]:
        raise ConfigInvalid(
            f"[topology] reference is '{named}', but {args.reference} has '{reference.name}';"
            " name the file of the host that has the reference core"
        )
    if named and not reference and named not in types:
        raise ConfigInvalid(
            f"[topology] reference '{named}' is not a core type of this host, which has"
            f" {', '.join(types)}; pass --reference FILE, the calibration of a host that has it"
        )
    file.check_writable(output)
    warnings = tuple(
        f"[topology] core_type sets the coefficient of '{t.name}' and overrides the measured one"
        for t in topology.core_types
        if t.coefficient_source == CONFIGURED
    )
    others = file.read(output) if args.merge and os.path.exists(output) else ()
    own = provenance.own(others)
    others = tuple(c for c in others if c is not own)
    return Task(topology, _idlest(topology), reference, host, named, others, warnings)


def _foreign(
    args: argparse.Namespace, types: Sequence[str], named: str | None
) -> tuple[Reference, str]:
    """The reference core of another host, and the name of that host.

    ``named``: the core type that ``[topology] reference`` names.
    """
    path, baseline = args.reference, _absolute(args.reference, named)
    origin = baseline.provenance
    if origin.python_version != kernels.VERSION:
        raise CalibrationInvalid(
            f"{path} was measured with Python {origin.python_version}, but this host has"
            f" Python {kernels.VERSION}, whose operations are others; calibrate that host with the"
            " same version"
        )
    if set(KERNELS) != set(baseline.kernels):
        raise CalibrationInvalid(
            f"{path} was measured with other kernels; calibrate that host with this amp-nova"
        )
    core = next(t for t in baseline.core_types if t.name == baseline.reference)
    # Different cores of two hosts may have the same name.
    name = f"{core.name}@{origin.host}" if core.name in types else core.name
    return Reference(name, elsewhere=core), origin.host


def _absolute(path: str, named: str | None) -> Calibration:
    """The calibration in a file that is relative to a core of its own host."""
    calibrations = file.read(path)
    candidates = [c for c in calibrations if c.reference_host is None]
    if not candidates:
        relative = calibrations[0]
        raise CalibrationInvalid(
            f"{path} is itself relative to '{relative.reference}' of host"
            f" '{relative.reference_host}'; pass the calibration of that host"
        )
    candidates = [c for c in candidates if c.reference == named] or candidates
    if len(candidates) > 1:
        hosts = " and ".join(f"'{c.reference}' of host '{c.provenance.host}'" for c in candidates)
        raise CalibrationInvalid(
            f"{path} has several reference cores, {hosts}; name one in [topology] reference"
        )
    return candidates[0]


def _idlest(topology: Topology) -> dict[str, int]:
    """The pCPU to measure of each core type."""
    for core_type in topology.core_types:
        if not topology.pcpus_of(core_type.name):
            raise CalibrationInvalid(
                f"core type '{core_type.name}' has no online pCPU; bring one online to measure it"
            )
    load_of, facts = idleness.loads(), read_facts("/").cpus
    return {t.name: idleness.idlest(topology, t.name, load_of, facts) for t in topology.core_types}


def _measure(task: Task, args: argparse.Namespace) -> list[SpeedSample]:
    """The samples of all rounds; in service, of more rounds until they are precise enough."""
    siblings = {p.id: p.siblings for p in task.topology.pcpus}
    cores = {
        name: [pcpu, *(s for s in siblings[pcpu] if s != pcpu)] for name, pcpu in task.pcpus.items()
    }
    share_ratio = args.in_service / 100 if args.in_service else None

    def show(number: int, left_s: float) -> None:
        progress(f"round {number + 1} of {max(number + 1, args.repeat)}, {left_s:.0f} s left in it")

    rounds = kernels.Rounds(cores, [k.name for k in KERNELS], args.seconds, show, share_ratio)
    most = args.repeat * (LONGER_IN_SERVICE if args.in_service else LONGER)
    samples: list[SpeedSample] = []
    with kernels.in_idle_group() if args.in_service else contextlib.nullcontext():
        for number in range(most):
            if number >= args.repeat and not _noise(task, args, samples):
                break
            samples += rounds.measure(number)
    progress("")
    return samples


def _noise(task: Task, args: argparse.Namespace, samples: list[SpeedSample]) -> str | None:
    """Why these samples do not give a precise result, ``None`` if they do."""
    try:
        return calibration.noise(_conclude(task, args, samples).core_types)
    except CalibrationInvalid as exc:
        return str(exc)


def _own_reference(
    task: Task, args: argparse.Namespace, samples: list[SpeedSample], warnings: list[str]
) -> Reference:
    """The reference core of this host: as configured, or the slowest measured one."""
    cpu_bound = [k.name for k in KERNELS if k.cpu_bound]
    types = [t.name for t in task.topology.core_types]
    first = task.configured or (
        task.topology.reference if task.topology.reference in types else types[0]
    )
    slowest = calibration.slowest(samples, [first, *(t for t in types if t != first)], cpu_bound)
    if slowest != first:
        warnings.append(
            f"'{slowest}' is slower than '{first}', the reference core in [topology] reference"
            if task.configured
            else f"'{slowest}' is slower than '{first}' and becomes the reference core; set"
            f" [topology] reference = {slowest}"
        )
    return Reference(task.configured or slowest, tuple(samples))


def _conclude(task: Task, args: argparse.Namespace, samples: list[SpeedSample]) -> Calibration:
    warnings = list(task.warnings)
    reference = task.reference or _own_reference(task, args, samples, warnings)
    pcpus = {
        t.name: tuple(sorted(task.topology.pcpus_of(t.name))) for t in task.topology.core_types
    }
    results = calibration.summarise(samples, pcpus, KERNELS, reference)
    missing = None
    if any(r.nominal_ips is None for r in results):
        missing = perf.why_missing(list(task.pcpus.values())) or (
            "the instruction counter was never free; another user holds it"
        )
    rounds = 1 + max(s.round for s in samples)
    return Calibration(
        reference=reference.name,
        reference_host=task.reference_host,
        provenance=provenance.of_run(args.seconds, rounds, args.force, bool(args.in_service)),
        kernels=KERNELS,
        core_types=results,
        nominal_ips_missing=missing,
        warnings=tuple(warnings),
    )
