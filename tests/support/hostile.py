# SPDX-License-Identifier: Apache-2.0
"""Every place where input of others enters, as a function of one text, for fuzzing of two kinds.

``tests/properties/test_hostile_input.py`` changes valid documents value by value; ``tools/fuzz``
does the same, guided by coverage. Both accept one outcome: a value, or one clear sentence.
"""

import atexit
import contextlib
import functools
import importlib.util
import io
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from amp_nova import conf
from amp_nova.agent.operator import control_socket
from amp_nova.cmd import cli, command
from amp_nova.exceptions import SENTENCE_MAX, AmpError
from amp_nova.flavor.extra_specs import examine
from amp_nova.hardware import operator_types
from amp_nova.host.calibration import file as calibration_file
from amp_nova.host.libvirt import domain_xml
from amp_nova.wire import encoding
from amp_nova_lab import report
from amp_nova_lab import run as simulation
from amp_nova_lab.cloud import description
from amp_nova_lab.commands import inputs
from amp_nova_lab.recording import what_if
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.document import ScenarioInvalid
from tests.support import calibrations, machines, trees
from tests.support.fakehost import nova_xml
from tests.support.host_reports import host_report, instance
from tests.unit.lab.commands.test_whatif import RECORDING

FOLDER = Path(tempfile.mkdtemp(prefix="amp-nova-fuzz-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def sentence(text: str) -> None:
    """Fail unless a message is one line without control characters, and not too long to read."""
    controls = {c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")}
    assert not controls, f"{controls} in {text[:300]!r}"
    assert 0 < len(text) <= SENTENCE_MAX, f"{len(text)} characters: {text[:300]!r}"


@dataclass(frozen=True)
class Surface:
    """One place: ``read`` returns or raises one of ``errors``; ``seeds`` are valid inputs."""

    read: Callable[[str], object]
    errors: tuple[type[Exception], ...]
    seeds: tuple[str, ...]

    def check(self, text: str) -> None:
        """Feed it a text; ``AssertionError`` or any other exception is a defect."""
        try:
            self.read(text)
        except self.errors as exc:
            sentence(str(exc))


def _file(name: str, text: str) -> Path:
    path = FOLDER / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    path.chmod(0o640)
    return path


def _extra_specs(text: str) -> None:
    """A line is KEY=VALUE; the first is the number of vCPUs."""
    count, *lines = text.split("\n")
    vcpus = int(count) if count.isascii() and count.isdecimal() and len(count) < 3 else 1
    specs = dict(line.partition("=")[::2] for line in lines)
    booking, errors = examine(specs, max(1, vcpus))
    assert (booking is None) == bool(errors)
    for error in errors:
        sentence(error)


def _domain(text: str) -> None:
    try:
        parsed = domain_xml.parse(text)
    except ValueError:  # the hypervisor makes a sentence of it
        return
    if parsed.domain.problem is not None:
        sentence(parsed.domain.problem)


def _question(text: str) -> None:
    answer = control_socket._reply(text.encode("utf-8", "surrogatepass"), lambda asked: asked)
    if "error" in answer and isinstance(answer["error"], str) and "JSON" in answer["error"]:
        sentence(answer["error"])


def _command(text: str) -> None:
    """Each line is an argument of ``amp-nova``, after one of the commands that only read."""
    command, *arguments = text.split("\n")
    known = {
        "0": ["flavor", "check"],
        "1": ["simulate"],
        "2": ["compare"],
        "3": [],
        "4": ["whatif"],
    }
    if "\0" in text:  # no command line contains one
        return
    argv = [*known.get(command, ["topology", "--root", str(FOLDER / "none")]), *arguments]
    if any(a[:1] == "-" and a.lstrip("-")[:1] in "cdporwi" for a in arguments):
        return  # what writes files, runs for long, or reads this machine
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = cli.main(argv)
        except SystemExit as exc:
            status = exc.code
    assert status in (0, 1, 2), f"exit status {status}"
    if status == 2:
        lines = err.getvalue().splitlines()
        assert lines, "no message"
        sentence(lines[-1].removeprefix("amp-nova: "))
    assert "Traceback" not in err.getvalue()


def _recording(text: str) -> None:
    """A scenario with every change that ``amp-nova whatif`` makes, but for running it."""
    whole = document.load(_file("recording.yaml", text))
    read, known = inputs.read(whole), what_if.recorded(whole)
    for core_type in read.topology.core_types:
        for more in (1, -1):
            with contextlib.suppress(ScenarioInvalid):  # the last core of the slowest type
                what_if.with_cores(read, core_type.name, more)
    for guest in read.guests[:1]:
        what_if.with_booking(read, guest.name, "0.5")
    for sign in (-1.0, 1.0):
        what_if.varied(read, known or {}, sign)


SCENARIOS = sorted(
    path
    for path in (Path(__file__).parent.parent / "scenarios").glob("*.yaml")
    if not path.stem.endswith(".expect")
)
SIMULATED_S, VCPUS_MAX, PCPUS_MAX = 0.2, 24, 64
"""Of a scenario that is run: what takes longer says no more."""


def _scenario(text: str) -> None:
    """Load a scenario and, if it is valid and small, run its beginning and show the result."""
    found = inputs.load(_file("scenario.yaml", text))
    vcpus = sum(len(guest.booking.vcpus) for guest in found.guests)
    if vcpus <= VCPUS_MAX and len(found.topology.pcpus) <= PCPUS_MAX:
        found = replace(found, duration_s=min(found.duration_s, SIMULATED_S))
        command.as_json(report.rounded(simulation.run(found)))


CLOUD = Path(__file__).parent.parent.parent / "doc/source/user/cloud.yaml"


@functools.cache
def _cloud():
    """Made when the first input needs it, because it imports Nova."""
    from tests.support import chain

    return chain.Cloud()


def _scheduler(text: str) -> None:
    """Each line is a report of one host, which must not change what happens to the others."""
    _cloud().check(text.split("\n")[:4])


def _scheduler_seeds() -> tuple[str, ...]:
    from tests.support import chain

    return tuple(map(json.dumps, chain.seeds()))


@functools.cache
def surfaces() -> Mapping[str, Surface]:
    """All places, by name."""
    reported = host_report(
        instance("a", (0.5, 0), flavor="m1", image="i"), instance("b", (None, None))
    )
    xml = nova_xml(
        specs={"amp:pref_core": "0.5"},
        cpuset="0-3,^2",
        cputune="<vcpupin vcpu='0' cpuset='1'/><emulatorpin cpuset='0'/><quota>-1</quota>",
    )
    machine = trees.write(FOLDER / "machine", machines.intel_hybrid())
    found = asdict(calibrations.build(machine))
    calibration = json.dumps({"schema": calibration_file.SCHEMA, "calibrations": [found]})
    settings = "\n".join(
        f"[{group}]\n" + "\n".join(f"{o.name} = {o.default}" for o in opts if o.default)
        for group, opts in conf.list_opts()
    )
    found = {
        "extra_specs": Surface(_extra_specs, (), ("2\namp:pref_core=0.5\namp:ips.1=2.5G",)),
        "domain": Surface(_domain, (), (xml,)),
        "report": Surface(encoding.decode, (AmpError,), (encoding.encode(reported),)),
        "calibration": Surface(
            lambda text: calibration_file.read(_file("calibration.json", text)),
            (AmpError,),
            (calibration,),
        ),
        "scenario": Surface(
            _scenario,
            (AmpError,),
            tuple(path.read_text() for path in SCENARIOS),
        ),
        "recording": Surface(_recording, (AmpError,), (yaml.safe_dump(RECORDING),)),
        "cloud": Surface(
            lambda text: description.read(document.load(_file("cloud.yaml", text)), {}),
            (AmpError,),
            (CLOUD.read_text(),),
        ),
        "configuration": Surface(
            lambda text: conf.load(files=[str(_file("amp-nova.conf", text))]),
            (AmpError,),
            (settings,),
        ),
        "core_type": Surface(operator_types.parse, (AmpError,), ("fast 0-7,16-23 1.85",)),
        "question": Surface(_question, (), ('{"command": "explain", "instance": "web"}',)),
        "command": Surface(
            _command, (), ("0\n--vcpus\n2\namp:pref_core=0.5", "1\nnone.yaml", "3\nstatus")
        ),
    }
    if importlib.util.find_spec("nova"):
        found["scheduler"] = Surface(_scheduler, (), _scheduler_seeds())
    return found
