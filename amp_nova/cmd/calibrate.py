"""``amp-nova calibrate``: measures the speed of each core type and writes the calibration file."""

import argparse
import dataclasses
import time
from collections.abc import Sequence

from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.cmd.arguments import add_config_file, whole
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova.exceptions import CalibrationInvalid, ConfigInvalid
from amp_nova.hardware import calibration
from amp_nova.hardware.calibration import Calibration, Kernel, Reference, Sample, TypeResult
from amp_nova.hardware.operator_types import SOURCE as CONFIGURED
from amp_nova.host.calibration import file, idleness, provenance, stress_ng
from amp_nova.host.calibration.stress_ng import StressNg
from amp_nova.host.counters import perf
from amp_nova.host.machine import load_topology
from amp_nova.model import cpulist
from amp_nova.model.topology import Topology

FORCE = "wait until the machine is idle, or pass --force"
REPEAT = 6
"""The fewest rounds whose range encloses the median with 95 % confidence."""
TRIES = 3
"""Attempts at one run before the machine counts as noisy."""


def _kernels(text: str) -> tuple[Kernel, ...]:
    kernels = {k.name: k for k in stress_ng.KERNELS}
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in kernels:
            raise argparse.ArgumentTypeError(
                f"no kernel '{name}'; the kernels are {', '.join(kernels)}"
            )
    if not any(kernels[name].cpu_bound for name in names):
        bound = ", ".join(k.name for k in stress_ng.KERNELS if k.cpu_bound)
        raise argparse.ArgumentTypeError(f"'{text}' has no CPU-bound kernel; add one of {bound}")
    return tuple(kernels[name] for name in names)


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """What is determined before the measurement."""

    topology: Topology
    pcpus: dict[str, int]
    """The pCPU to measure of each core type."""
    generator: StressNg
    reference: Reference | None
    """The reference core of another host, ``None`` if this host has it."""
    reference_host: str | None
    configured: str | None
    """The core type that ``[topology] reference`` names."""
    warnings: tuple[str, ...]


class Calibrate(Report):
    """Measure the coefficient and nominal Ips of every core type of an idle host"""

    _epilog = """examples:
  amp-nova calibrate
  amp-nova calibrate --no-write --repeat 3 --kernels integer,float
  amp-nova calibrate --reference slow-host.json    the reference core is on another host
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of ``calibrate``."""
        add = parser.add_argument
        add("--output", metavar="FILE", help="write here; default: [topology] calibration_file")
        add(
            "--reference",
            metavar="FILE",
            help="calibration of the host that has the reference core",
        )
        count = whole(1, 3600)
        add("--repeat", type=count, default=REPEAT, metavar="N", help="rounds; default %(default)s")
        add("--seconds", type=count, default=1, metavar="S", help="length of one run; default 1")
        names = ",".join(k.name for k in stress_ng.KERNELS)
        add("--kernels", type=_kernels, default=names, metavar="NAMES", help="default %(default)s")
        add(
            "--force",
            action="store_true",
            help="measure even a busy machine, write even noisy results",
        )
        add("--no-write", action="store_true", help="load and measure the machine, write no file")
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
        if not args.no_write:
            file.write(output, result)
        written = "not written" if args.no_write else "written"
        return _table(result, f"{written} to {output}")


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
    generator = stress_ng.find()
    types = [t.name for t in topology.core_types]
    reference, host = _foreign(args, generator, types) if args.reference else (None, None)
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
    if not args.no_write:
        file.check_writable(output)
    pcpus, warnings = _idle(topology, args.force)
    warnings += [
        f"[topology] core_type sets the coefficient of '{t.name}' and overrides the measured one"
        for t in topology.core_types
        if t.coefficient_source == CONFIGURED
    ]
    return Task(topology, pcpus, generator, reference, host, named, tuple(warnings))


def _foreign(
    args: argparse.Namespace, generator: StressNg, types: Sequence[str]
) -> tuple[Reference, str]:
    """The reference core of another host, and the name of that host."""
    path, other = args.reference, file.read(args.reference)
    made = other.provenance
    if other.reference_host is not None:
        raise CalibrationInvalid(
            f"{path} is itself relative to '{other.reference}' of host '{other.reference_host}';"
            " pass the calibration of that host"
        )
    if made.stress_ng_version != generator.version:
        raise CalibrationInvalid(
            f"{path} was measured with stress-ng {made.stress_ng_version}, but this host has"
            f" {generator.version}, which counts differently; install the same version on both"
        )
    for kernel in args.kernels:
        if kernel not in other.kernels:
            raise CalibrationInvalid(
                f"{path} has no kernel '{kernel.name}' ({kernel.arguments}); pass --kernels with"
                f" some that it has: {','.join(k.name for k in other.kernels)}"
            )
    samples = tuple(
        # Different cores of two hosts may have the same name.
        dataclasses.replace(s, core_type=_distinct(s.core_type, types, made.host))
        for s in other.samples
    )
    return Reference(_distinct(other.reference, types, made.host), samples, foreign=True), made.host


def _distinct(name: str, types: Sequence[str], host: str) -> str:
    return f"{name}@{host}" if name in types else name


def _idle(topology: Topology, force: bool) -> tuple[dict[str, int], list[str]]:
    """The pCPU to measure of each core type, and a warning if it is busy and ``force`` is set."""
    for core_type in topology.core_types:
        if not topology.pcpus_of(core_type.name):
            raise CalibrationInvalid(
                f"core type '{core_type.name}' has no online pCPU; bring one online to measure it"
            )
    try:
        load_of = idleness.loads()
    except CalibrationInvalid:
        if not force:
            raise
        load_of = {}
    pcpus = {t.name: idleness.idlest(topology, t.name, load_of) for t in topology.core_types}
    busy = idleness.why_busy(topology, pcpus, load_of)
    if busy and not force:
        raise CalibrationInvalid(f"{busy}; {FORCE}")
    return pcpus, [f"forced although {busy}"] if busy else []


def _measure(task: Task, args: argparse.Namespace) -> list[Sample]:
    siblings = {p.id: p.siblings for p in task.topology.pcpus}
    cores = {
        name: [pcpu, *(s for s in siblings[pcpu] if s != pcpu)] for name, pcpu in task.pcpus.items()
    }
    kernels = {k.name: k for k in args.kernels}
    steps = calibration.schedule(
        {name: len(core) > 1 for name, core in cores.items()}, list(kernels), args.repeat
    )
    started_s = time.monotonic()
    samples: list[Sample] = []
    for step in steps:
        spent_s = time.monotonic() - started_s
        each_s = spent_s / len(samples) if samples else args.seconds + 0.1
        progress(
            f"round {step.round + 1} of {args.repeat}: {step.kernel} on '{step.core_type}',"
            f" {each_s * (len(steps) - len(samples)):.0f} s left"
        )
        for _ in range(1 if args.force else TRIES):
            sample = task.generator.run(
                step, kernels[step.kernel], cores[step.core_type], args.seconds
            )
            if sample.cpu_share_ratio >= calibration.MIN_CPU_SHARE_RATIO:
                break  # otherwise retry: a short disturbance need not spoil the calibration
        samples.append(sample)
    progress("")
    return samples


def _conclude(task: Task, args: argparse.Namespace, samples: list[Sample]) -> Calibration:
    warnings = list(task.warnings)
    reference = task.reference or _own_reference(task, args, samples, warnings)
    pcpus = {
        t.name: tuple(sorted(task.topology.pcpus_of(t.name))) for t in task.topology.core_types
    }
    results = calibration.summarise(samples, pcpus, args.kernels, reference)
    noisy = calibration.noise(results, samples)
    if noisy and not args.force:
        raise CalibrationInvalid(f"{noisy}; nothing was written: {FORCE}")
    warnings += [f"forced although {noisy}"] if noisy else []
    missing = None
    if any(r.nominal_ips is None for r in results):
        missing = perf.why_missing(list(task.pcpus.values())) or (
            "the instruction counter was never free; another user holds it"
        )
    return Calibration(
        schema=calibration.SCHEMA,
        reference=reference.name,
        reference_host=task.reference_host,
        provenance=provenance.of_run(task.generator.version, args.seconds, args.repeat, args.force),
        kernels=args.kernels,
        core_types=results,
        nominal_ips_missing=missing,
        warnings=tuple(warnings),
        samples=tuple(samples),
    )


def _own_reference(
    task: Task, args: argparse.Namespace, samples: list[Sample], warnings: list[str]
) -> Reference:
    """The reference core of this host: as configured, or the slowest measured one."""
    cpu_bound = [k.name for k in args.kernels if k.cpu_bound]
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


def _table(result: Calibration, end: str) -> Answer:
    """A row for every core type, with a column for every kernel; ``end``: the last line below."""
    kernels = [k.name for k in result.kernels]
    # Without the samples, which are thousands of lines.
    document = dataclasses.asdict(dataclasses.replace(result, samples=()))
    return Answer(
        ["Core Type", "pCPUs", "Coefficient", "Interval", *kernels, "Nominal Ips", "SMT Busy"],
        [_row(t) for t in result.core_types],
        document,
        below=[*_notes(result), end],
    )


def _notes(result: Calibration) -> list[str]:
    """The lines below the table."""
    confidence = min(r.coefficient.confidence_ratio for r in result.core_types)
    host = f" of host '{result.reference_host}'" if result.reference_host else ""
    bound = ", ".join(k.name for k in result.kernels if k.cpu_bound)
    made = result.provenance
    lines = [
        "",
        f"reference core: '{result.reference}'{host}; coefficient: geometric mean of {bound}",
        f"interval: contains the true coefficient with {confidence:.0%} confidence",
        f"measured: {made.repeat} rounds of {made.run_s} s with stress-ng {made.stress_ng_version}",
    ]
    if any(t.smt_busy_factor for t in result.core_types):
        lines.append(
            "SMT busy: speed beside busy siblings over speed alone, and its range over the kernels"
        )
    if result.nominal_ips_missing:
        lines.append(f"no nominal Ips: {result.nominal_ips_missing}")
    return [*lines, *(f"warning: {w}" for w in result.warnings)]


def _row(result: TypeResult) -> list[object]:
    coefficient = result.coefficient
    return [
        result.name,
        cpulist.show(result.pcpus),
        short(coefficient.value),
        f"{coefficient.low:.3f}..{coefficient.high:.3f}",
        *(short(kernel.ratio.value) for kernel in result.kernels),
        None if result.nominal_ips is None else short(result.nominal_ips.value),
        _smt_busy(result),
    ]


def _smt_busy(result: TypeResult) -> str | None:
    """The factor, and its range over the kernels."""
    factor = result.smt_busy_factor
    kernels = [k.smt_busy_factor.value for k in result.kernels if k.smt_busy_factor]
    if factor is None:
        return None
    between = f" ({min(kernels):.2f}..{max(kernels):.2f})" if kernels else ""
    return f"{factor.value:.3f}{between}"
