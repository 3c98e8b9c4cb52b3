# SPDX-License-Identifier: Apache-2.0
"""``amp-nova selftest``: whether bookings are kept on this machine, without Nova and guests.

The real agent and its guard enforce bookings of stand-ins (``host.stand_in``), which libvirt's test
driver describes. What they get is read from the kernel and from their own work, not from the agent.
"""

import argparse
import contextlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.cmd.arguments import add_config_file, whole
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova.cmd.instances import NO_LIBVIRT
from amp_nova.cmd.topology import as_dict
from amp_nova.exceptions import ConfigInvalid
from amp_nova.hardware.operator_types import SOURCE as CONFIGURED
from amp_nova.host.calibration import idleness
from amp_nova.host.machine import load_topology
from amp_nova.host.sysfs import read_facts
from amp_nova.host.vcpu_threads import RUN_PATH
from amp_nova.model.topology import CoreType, Topology

if TYPE_CHECKING:
    from amp_nova.host.stand_in import StandIn

CYCLE_S, LEASE_S, SETTLE_S, MEASURE_S = 0.5, 2.0, 3.0, 6
COEFFICIENT, SIBLINGS = "coefficient", "work beside siblings"
TOLERANCE_RATIO, TOLERANCES = 0.02, {COEFFICIENT: 0.1, SIBLINGS: 0.05}
"""How far from its promise a check may be in so short a time; coefficients depend on the work."""
SHARE = 0.5
"""The part of a pCPU that each booking is worth."""
KEPT, BROKEN, UNKNOWN = "kept", "NOT KEPT", "cannot be judged"
DECLARED = "cannot be judged: it is declared"
BUSY = "cannot be judged: other processes used the pCPU"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what was measured of it."""

    check: str
    core_type: str
    promised: float | str | None
    measured: float | str | None
    verdict: str


@dataclass(frozen=True, slots=True)
class Used:
    """What a stand-in got in a while, and what it waited for: cores, and rounds of work."""

    cores: float
    waited_cores: float
    rounds_per_s: float


def judged(
    check: str, core_type: str, promised: float, measured: float, lost: float = 0.0
) -> Check:
    """A check with its verdict; ``lost``: what other processes on the machine took.

    More work than promised breaks nothing: clocks rise, and others than siblings fall idle.
    """
    tolerance = TOLERANCES.get(check, TOLERANCE_RATIO)
    more = check == SIBLINGS and measured > promised
    kept = more or abs(measured - promised) <= tolerance * promised
    busy = measured < promised <= (measured + lost) * (1.0 + tolerance)
    return Check(check, core_type, promised, measured, KEPT if kept else BUSY if busy else BROKEN)


def in_all(checks: list[Check]) -> str:
    """The verdict on all of them, which promises nothing of what could not be judged."""
    verdicts = [c.verdict for c in checks if c.promised != ""]
    if broken := verdicts.count(BROKEN):
        return f"{broken} of {len(verdicts)} promises are not kept"
    unknown = len(verdicts) - verdicts.count(KEPT)
    return f"{unknown} of {len(verdicts)} cannot be judged" if unknown else "all are kept"


class SelfTest(Report):
    """Test on this machine whether bookings are kept: a minute of work on stand-ins for guests"""

    _epilog = """examples:
  amp-nova selftest
  amp-nova selftest -f json > selftest.json    names no host, address or serial number
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--seconds",
            type=whole(1, 60),
            default=MEASURE_S,
            metavar="S",
            help="time for each measurement; default %(default)s",
        )
        add_config_file(parser)

    def answer(self, args: argparse.Namespace) -> Answer:
        """Run all checks; exit status 1 if a promise is not kept."""
        if os.geteuid() != 0:
            raise ConfigInvalid("only root may make cgroups: run it as root")
        with tempfile.TemporaryDirectory(prefix="amp-nova-selftest-") as folder:
            conf = _configuration(args.config_file, Path(folder))
            topology = load_topology(conf)
            progress("calibrating ...")
            checks = _calibrated(conf, topology, args.config_file, Path(folder))
            topology = load_topology(conf)
            with _Trial(conf, topology, Path(folder), args.seconds) as host:
                checks += host.checks()
            progress("")
        verdict = in_all(checks)
        self.status = int(any(c.verdict == BROKEN for c in checks))
        document = {
            "amp_nova": version("amp-nova"),
            "kernel": platform.release(),
            "machine": platform.machine(),
            "topology": as_dict(topology),
            "checks": [{name: getattr(c, name) for name in Check.__slots__} for c in checks],
            "verdict": verdict,
        }
        rows = [
            (c.check, c.core_type, short(c.promised), short(c.measured), c.verdict) for c in checks
        ]
        columns = ("Check", "Core Type", "Promised", "Measured", "Verdict")
        below = [f"source of the core types: {topology.source}", *topology.warnings, verdict]
        return Answer(columns, rows, document, below=below)


def _configuration(files: list[str] | None, folder: Path) -> cfg.ConfigOpts:
    """This host's configuration, for an agent that knows nothing but the stand-ins."""
    conf = options.load(files=files)
    root = folder / "root"
    (root / RUN_PATH).mkdir(parents=True)
    for real in ("proc", "sys"):
        (root / real).symlink_to(f"/{real}")
    overrides: dict[str, dict[str, Any]] = {
        "agent": {
            "libvirt_uri": "test:///default",
            "state_path": str(folder / "state"),
            "cycle_s": CYCLE_S,
            "lease_s": LEASE_S,
            "mode": "enforce",
            "writer": "cgroup",
            "policy": "none",
            "policy_parameter": [],
            "io_work": "off",
        },
        "topology": {"root": str(root)},
        "exporter": {"enabled": False},
        "reports": {"transport_url": None},
        "placement": {"enabled": False},
    }
    for group, values in overrides.items():
        for name, value in values.items():
            conf.set_override(name, value, group)
    return conf


def _calibrated(
    conf: cfg.ConfigOpts, topology: Topology, files: list[str] | None, folder: Path
) -> list[Check]:
    """Whether the coefficients in force are what a short calibration finds.

    Core types without one get the measured one for the other checks.
    """
    before = {t.name: t.coefficient for t in topology.core_types}
    output = folder / "calibration.json"
    words = ["calibrate", "--repeat", "1", "--force"]
    words += ["--output", str(output), *(f"--config-file={file}" for file in files or ())]
    done = subprocess.run(
        [sys.executable, "-m", "amp_nova.cmd.cli", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return [Check(COEFFICIENT, "", None, done.stderr.strip() or None, UNKNOWN)]
    kept, lines = conf.topology.calibration_file, conf.topology.core_type
    conf.set_override("calibration_file", str(output), "topology")
    bare = [[w for at, w in enumerate(line.split()) if at < 2 or "=" in w] for line in lines]
    conf.set_override("core_type", [*map(" ".join, bare)], "topology")
    conf.set_override("reference", topology.reference, "topology")
    found = {t.name: t.coefficient for t in load_topology(conf).core_types}
    conf.set_override("core_type", lines, "topology")
    if None not in before.values():
        conf.set_override("calibration_file", kept, "topology")
    declared = {t.name for t in topology.core_types if t.coefficient_source == CONFIGURED}
    checks = []
    for name, promised in before.items():
        measured = found.get(name)
        if promised is None or measured is None:
            check = Check(COEFFICIENT, name, promised, measured, UNKNOWN)
        else:
            check = judged(COEFFICIENT, name, promised, measured)
        if check.verdict == BROKEN and name in declared:
            check = replace(check, verdict=DECLARED)  # the operator may know the work better
        checks.append(check)
    return checks


class _Trial:
    """Stand-ins, and an agent in this process that enforces their bookings."""

    def __init__(
        self, conf: cfg.ConfigOpts, topology: Topology, folder: Path, seconds: int
    ) -> None:
        try:
            from amp_nova.agent.service import Service
            from amp_nova.host.stand_in import StandIns
        except ImportError as exc:
            missing = NO_LIBVIRT if exc.name == "libvirt" else f"{exc}: install amp-nova[agent]"
            raise ConfigInvalid(missing) from exc
        self._types = [t for t in topology.core_types if t.coefficient]
        if not self._types:
            raise ConfigInvalid("no core type has a coefficient: run amp-nova calibrate")
        self._topology, self._seconds = topology, seconds
        self._stands = StandIns(folder / "root" / RUN_PATH)
        self._exit = contextlib.ExitStack()
        self._service = Service(conf)

    def __enter__(self) -> "_Trial":
        self._guarding = self._exit.enter_context(self._service.in_control(quiet=True))
        return self

    def __exit__(self, *_: object) -> None:
        self._stands.close()
        self._exit.close()  # the guard ends with this process

    def _run(self, seconds: float) -> None:
        """Let the agent work."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._guarding.after(self._service.once())
            time.sleep(CYCLE_S)

    def _measured(self, stands: "dict[str, StandIn]") -> dict[str, Used]:
        """What each of them used while the agent works."""
        before = {name: stand.used() for name, stand in stands.items()}
        self._run(self._seconds)
        found = {}
        for name, stand in stands.items():
            wall_s, ran_s, waited_s, rounds = (
                b - a for a, b in zip(before[name], stand.used(), strict=True)
            )
            found[name] = Used(ran_s / wall_s, waited_s / wall_s, rounds / wall_s)
        return found

    def checks(self) -> list[Check]:
        """All of them, one after the other."""
        load_of, facts, known = idleness.loads(), read_facts("/").cpus, self._topology
        pcpus = {t.name: idleness.idlest(known, t.name, load_of, facts) for t in self._types}
        stands = {t.name: self._stands.add(t.name) for t in self._types}
        progress("the speed of a whole pCPU ...")
        for name, stand in stands.items():
            stand.pin(pcpus[name])
        # Per core that it got: others may run on the machine.
        alone = {n: used.rounds_per_s / used.cores for n, used in self._measured(stands).items()}
        progress("bookings of half a pCPU ...")
        for t in self._types:
            self._stands.start(stands[t.name], pcpus[t.name], _books(t))
        self._run(SETTLE_S)
        checks = [
            judged("share", name, SHARE, used.cores, used.waited_cores)
            for name, used in self._measured(stands).items()
        ]
        checks += self._beside_siblings(stands, pcpus, alone)
        checks += self._moved(stands, pcpus)
        checks += self._without_agent(stands)
        sources = sorted({source for source, _ in self._service.sensor.counting()})
        counted = ", ".join(s for s in sources if s != "none") or "nothing"
        return [*checks, Check("instructions counted by", "", "", counted, "-")]

    def _beside_siblings(
        self, stands: "dict[str, StandIn]", pcpus: dict[str, int], alone: dict[str, float]
    ) -> Iterator[Check]:
        """The work of each booking while best effort keeps the core's other threads busy."""
        with_siblings = {
            t.name: siblings
            for t in self._types
            if (siblings := self._topology.siblings_of(pcpus[t.name]))
        }
        if not with_siblings:
            return
        progress("the same beside busy siblings ...")
        for name, siblings in with_siblings.items():
            for pcpu in siblings:
                self._stands.start(self._stands.add(f"sibling{pcpu}-{name}"), pcpu, {})
        self._run(SETTLE_S)
        found = self._measured({name: stands[name] for name in with_siblings})
        for name, used in found.items():
            work, lost = used.rounds_per_s / alone[name], used.waited_cores
            yield judged(SIBLINGS, name, SHARE, work, lost)

    def _moved(self, stands: "dict[str, StandIn]", pcpus: dict[str, int]) -> Iterator[Check]:
        """The booking of the slowest type, moved to the fastest."""
        slow, fast = self._types[0], self._types[-1]
        if slow.name == fast.name or not (slow.coefficient and fast.coefficient):
            return
        progress("a move to another core type ...")
        self._stands.start(stands[slow.name], pcpus[fast.name], _books(slow))
        self._run(SETTLE_S)
        (used,) = self._measured({slow.name: stands[slow.name]}).values()
        promised, lost = SHARE * slow.coefficient / fast.coefficient, used.waited_cores
        yield judged("share after a move", fast.name, promised, used.cores, lost)

    def _without_agent(self, stands: "dict[str, StandIn]") -> Iterator[Check]:
        """A limit that somebody removes while the agent does not work: the guard restores it."""
        progress("the guard of a dead agent ...")
        name, stand = next(reversed(stands.items()))
        stand.forget_limit()
        time.sleep(LEASE_S + 3.0)
        restored = stand.quota_cores()
        yield judged("limit without an agent", name, SHARE, restored or 1.0)


def _books(core_type: CoreType) -> dict[str, str]:
    return {"amp:pref_core": f"{SHARE * (core_type.coefficient or 0.0):.4f}"}
