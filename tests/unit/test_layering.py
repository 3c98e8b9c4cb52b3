# SPDX-License-Identifier: Apache-2.0
"""The rules of the house as a test: who imports whom, who decides, who writes, sizes and words.

Everything is read from syntax trees, so nothing has to be installed and nothing is run. Every check
takes the root of a tree and returns sentences.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent

# Rule 1: imports go one way. What decides, from the bottom up: a folder imports itself and those
# before it, and of the rest only the standard library and VALUES.
PURE = (
    "model",
    "flavor",
    "hardware",
    "admission",
    "control",
    "accounting",
    "profiling",
    "policies",
    "wire",
    "scheduling",
)
DECISIONS = tuple(f"amp_nova.{folder}" for folder in PURE)
# A library without I/O: its structs take a quarter of the time of named tuples to make, and types
# and bounds of a report are declared once.
VALUES = "msgspec"
EXCEPTIONS = "amp_nova.exceptions"
LAB = "amp_nova_lab"
TCG = f"{LAB}/tcg_counter.py"
OSLO = ("oslo_config", "oslo_log")

KERNEL = ("amp_nova.kernel", "amp_nova.model.bandwidth", "amp_nova.model.cpu_weight", EXCEPTIONS)

# The control loop and its parts: what the agent and the simulator share.
LOOP = ("agent.loop", "agent.cycle", "agent.state")
SHARED = (*DECISIONS, "amp_nova.ports", "amp_nova.plugins", EXCEPTIONS, VALUES)
CLIENT = "amp_nova.prometheus"

# Files under the first path may import these modules (with what is below them) and the standard
# library, nothing else. The longest path counts.
ONLY: dict[str, tuple[str, ...]] = {
    **{folder: (*DECISIONS[: PURE.index(folder) + 1], EXCEPTIONS, VALUES) for folder in PURE},
    "exceptions.py": (),
    # It is copied into servers, alone.
    "tenant/probe.py": (),
    # The guard has to run when anything else of amp-nova cannot: only values, without msgspec.
    "kernel": KERNEL,
    "guard": ("amp_nova.guard", *KERNEL),
    "ports.py": (*DECISIONS, EXCEPTIONS),
    "message_bus.py": ("oslo_messaging", "oslo_config"),
    "prometheus.py": (),
    "http_server.py": ("cheroot",),
    **{
        path: (*SHARED, *(f"amp_nova.{part}" for part in LOOP))
        for part in LOOP
        for path in (part.replace(".", "/"), part.replace(".", "/") + ".py")
    },
    "osc": (
        *DECISIONS,
        EXCEPTIONS,
        "amp_nova.osc",
        CLIENT,
        "amp_nova.cmd.command",
        "amp_nova.cmd.arguments",
        "osc_lib",
        "keystoneauth1",
    ),
    # What a tenant is told is computed from what Prometheus answers, and from nothing else.
    "tenant": ("amp_nova.tenant", CLIENT, VALUES, "keystoneauth1"),
    "tenant/figures.py": (VALUES,),
    "tenant/server.py": (
        "amp_nova",
        "cheroot",
        "keystoneauth1",
        "keystonemiddleware",
        "oslo_middleware",
        *OSLO,
    ),
    # It is part of "openstack amp", which works where there is no agent.
    "cmd/command.py": (EXCEPTIONS, "amp_nova.cmd.arguments", "cliff", "yaml"),
    "cmd/arguments.py": (EXCEPTIONS, "amp_nova.flavor"),
    f"{LAB}/cpu_use.py": (EXCEPTIONS, CLIENT),
    LAB: (*SHARED, LAB, *(f"amp_nova.{part}" for part in LOOP), "yaml"),
    TCG: ("amp_nova.host.counters", "amp_nova.kernel", *DECISIONS, EXCEPTIONS),
    f"{LAB}/policies": (*DECISIONS, EXCEPTIONS, f"{LAB}.policies"),
    f"{LAB}/commands": ("amp_nova", LAB, "matplotlib", "oslo_config", VALUES),
}

# The first module is imported by files under these paths and by no other.
ONLY_BY = {
    # A compute node and a scheduler do without the laboratory; cli loads its commands by name.
    LAB: (LAB,),
    "amp_nova.host": ("host", "cmd", "agent/wiring.py", f"{LAB}/commands/record.py", TCG),
    "amp_nova.kernel": ("kernel", "guard", "host", TCG),
    "amp_nova.guard": (
        "guard",
        "host",
        "agent/guarding.py",
        "agent/operator/release.py",
        # Locks and pauses, which the guard respects like everybody else.
        "agent/service.py",
        "agent/wiring.py",
        "cmd/instances.py",
    ),
    "amp_nova.agent.wiring": ("agent/service.py", "agent/operator/release.py", "cmd"),
    "cliff": ("cmd/cli.py", "cmd/command.py"),
    "libvirt": ("host",),
    "nova": ("nova_plugins",),
    "amp_nova.tenant": ("tenant", "cmd/flavor.py"),
    "keystoneauth1": ("agent/publish/placement.py", "osc", "tenant"),
    "keystonemiddleware": ("tenant/server.py",),
    "osc_lib": ("osc",),
    "oslo_messaging": ("nova_plugins", "agent/publish/host_reports.py", "message_bus.py"),
    "stevedore": ("plugins.py",),
}

# Files under the first path import none of these.
NEVER = {
    "nova_plugins": ("amp_nova.agent", "amp_nova.host"),
    "host": ("amp_nova.agent", "amp_nova.cmd"),
    "agent": ("amp_nova.cmd",),
    "agent/publish": ("amp_nova.ports", "amp_nova.agent.loop"),
}

# Rule 2: one decider. Only these files make these values, and only the last one replaces a limit.
MADE_BY = {
    "Entitlement": ("control/entitlement.py",),
    "Change": ("control/changes.py", "host/writer.py", f"{LAB}/host.py"),
    "Step": ("control/changes.py", "guard/restore.py", "host/writer.py", f"{LAB}/host.py"),
}

REPLACED_BY = {"limit": "control/limit.py"}

# Rule 3: one writer, with its back ends. Only these files call what changes a limit, an affinity, a
# priority or a CPU weight. The guard is the one exception: it writes what is recorded while there
# is no agent, so it must not depend on the agent's writer.
CALIBRATION = "host/calibration/kernels.py"  # its own process
STAND_IN = "host/stand_in.py"  # processes that it started
CALLED_BY = {
    "set_bandwidth": ("host/writer.py", "guard/restore.py"),
    "set_shares": ("host/writer.py", "guard/restore.py"),
    "set_weight": ("host/writer.py",),
    "set_affinity": ("host/writer.py", "host/io_threads.py", "guard/restore.py", STAND_IN),
    "sched_setaffinity": ("kernel/threads.py", "tenant/probe.py", CALIBRATION),
    "sched_setscheduler": (),
    "setpriority": (),
    "pinVcpu": (),
    "pinVcpuFlags": ("host/libvirt/backend.py",),
    "setSchedulerParametersFlags": ("host/libvirt/backend.py",),
    "setMetadata": ("host/libvirt/backend.py",),
}

# Rule 4: sizes, in lines that are not blank; docstrings of functions do not count.
CLASS_LINES_MAX = 200
FUNCTION_LINES_MAX = 40
ATTRIBUTES_MAX = 10
PARAMETERS_MAX = 5
LARGE = {
    "agent/publish/host_info.py AgentStatus": "what the agent knows of itself, one for one",
    "agent/service.py Service": "the parts of the agent, one for one",
    "control/entitlement.py Entitlement": "all that is in force for a vCPU, and why",
    "hardware/calibration.py Provenance": "the fields of the calibration file, one for one",
    "host/libvirt/hypervisor.py __init__": "independent settings with defaults",
    "model/topology.py Topology": "the machine, and what is looked up in it",
    "model/observation.py Domain": "what libvirt and Nova say of a domain, one for one",
    "policies/api.py VcpuView": "the published interface of policies",
    f"{LAB}/cores.py Cores": "what a scheduler keeps of its pCPUs and vCPUs",
    f"{LAB}/guest.py Behaviour": "the present phase and turn, whose parts every step reads",
    f"{LAB}/host.py __init__": "independent settings with defaults",
}

# Rule 5: words of a private vocabulary, in no name that others see.
# fmt: off
WORDS = {
    "look", "looks", "room", "rooms", "portion", "portions", "promise", "promises", "grant",
    "grants", "granted", "ask", "asks", "held", "yields", "unheld", "lesson", "lessons", "books",
    "tenure", "tenures", "prospect", "lane", "lanes", "charge", "charged", "charger", "budget",
    "budgets", "exact", "small", "governed", "settle", "settled", "settles", "rest", "rests",
    "quarrel", "quarrels", "homeless", "seat", "seats", "utils", "common", "base", "manager",
    "helpers", "misc",
}
# fmt: on


def within(name: str, prefixes: tuple[str, ...], separator: str) -> bool:
    return any(name == p or name.startswith(p + separator) for p in prefixes)


@cache
def sources(root: Path) -> tuple[tuple[str, tuple[ast.AST, ...], str], ...]:
    """Path, nodes of the syntax tree and text of every file; paths are within ``amp_nova``.

    Those of the laboratory begin with its name.
    """
    package = root / "amp_nova"
    files = {p.relative_to(package).as_posix(): p for p in sorted(package.rglob("*.py"))}
    files |= {p.relative_to(root).as_posix(): p for p in sorted((root / LAB).rglob("*.py"))}
    texts = {path: file.read_text() for path, file in files.items()}
    return tuple((p, tuple(ast.walk(ast.parse(text))), text) for p, text in texts.items())


def imports(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Dotted names of the modules that a file imports, wherever in the file."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # "from amp_nova import host" imports amp_nova.host
            whole = node.module == "amp_nova"
            yield from (f"amp_nova.{a.name}" if whole else node.module or "." for a in node.names)


def is_stdlib(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def import_faults(root: Path) -> list[str]:
    return [
        f"{path} may not import {module}"
        for path, nodes, _ in sources(root)
        for module in dict.fromkeys(imports(nodes))
        if not may_import(path, module)
    ]


def may_import(path: str, module: str) -> bool:
    narrowest = max((where for where in ONLY if within(path, (where,), "/")), key=len, default="")
    if narrowest and not (is_stdlib(module) or within(module, ONLY[narrowest], ".")):
        return False
    for owned, users in ONLY_BY.items():
        if within(module, (owned,), ".") and not within(path, users, "/"):
            return False
    return not any(
        within(path, (where,), "/") and within(module, banned, ".")
        for where, banned in NEVER.items()
    )


def cycle_faults(root: Path) -> list[str]:
    """Files that import each other in a circle, if only for types."""
    files = {path: nodes for path, nodes, _ in sources(root)}
    dotted = {p: p[:-3].replace("/", ".") for p in files}
    module = {m if within(m, (LAB,), ".") else f"amp_nova.{m}": p for p, m in dotted.items()}
    uses: dict[str, set[str]] = {}
    for path, nodes in files.items():
        found = set()
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{a.name}" for a in node.names]
                found |= {module[n] for n in (node.module, *names) if n in module}
            elif isinstance(node, ast.Import):
                found |= {module[a.name] for a in node.names if a.name in module}
        uses[path] = found - {path}
    done: set[str] = set()

    def circle(path: str, trail: tuple[str, ...]) -> tuple[str, ...]:
        if path in trail:
            return (*trail[trail.index(path) :], path)
        if path not in done:
            for used in sorted(uses[path]):
                if found := circle(used, (*trail, path)):
                    return found
            done.add(path)
        return ()

    found = next((c for path in uses if (c := circle(path, ()))), ())
    return [" -> ".join(found)] if found else []


def decider_faults(root: Path) -> list[str]:
    """Values that are made, or calls that are made, where they should not be."""
    faults = []
    for path, nodes, _ in sources(root):
        for node in nodes:
            if not isinstance(node, ast.Call):
                continue
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else None
            name = function.id if isinstance(function, ast.Name) else name
            for owners, verb in ((MADE_BY, "make"), (CALLED_BY, "call")):
                if name in owners and path not in owners[name]:
                    faults.append(f"{path} may not {verb} {name}")
            if ast.unparse(function) == "structs.replace":
                for field in (k.arg for k in node.keywords if k.arg in REPLACED_BY):
                    if path != REPLACED_BY[field]:
                        faults.append(f"{path} may not replace {field}")
    return faults


def lines(text: Sequence[str], node: ast.stmt | None = None) -> int:
    """Lines of a file, or of one statement in it, that are not blank."""
    part = text if node is None else text[node.lineno - 1 : node.end_lineno]
    return sum(1 for line in part if line.strip())


def attributes(node: ast.ClassDef) -> int:
    """Fields of a class, declared or assigned to ``self``."""
    names = {
        s.target.id
        for s in node.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
    }
    for part in ast.walk(node):
        stored = isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if stored and isinstance(part.value, ast.Name) and part.value.id == "self":
            names.add(part.attr)
    return len(names)


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    a = node.args
    names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return sum(n not in ("self", "cls") for n in names) + bool(a.vararg) + bool(a.kwarg)


def size_faults(root: Path) -> list[str]:
    return [fault for fault in too_large(root) if fault not in LARGE]


@cache
def too_large(root: Path) -> list[str]:
    return [
        f"{path} {what}"
        for path, nodes, text in sources(root)
        for what, found, most in sizes(nodes, text)
        if found > most
    ]


def sizes(nodes: Sequence[ast.AST], text: str) -> Iterator[tuple[str, int, int]]:
    """What is measured, its size, and the most that it may be."""
    split = text.splitlines()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield node.name, lines(split, node), CLASS_LINES_MAX
            yield node.name, attributes(node), ATTRIBUTES_MAX
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = lines(split, node)
            if ast.get_docstring(node):
                length -= lines(split, node.body[0])
            yield node.name, length, FUNCTION_LINES_MAX
            yield node.name, parameters(node), PARAMETERS_MAX


def word_faults(root: Path) -> list[str]:
    faults = []
    for path, nodes, _ in sources(root):
        names = [part.removesuffix(".py") for part in path.split("/")]
        for node in nodes:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names += [] if node.name.startswith("_") else [node.name]
        faults += [f"{path}: {name}" for name in names if words(name) & WORDS or name == "core"]
    return faults


# Rule 6: one reader. What lies in /proc, /sys and cgroups is read by kernel/files, or with a bound
# through a descriptor that stays open (os.pread). Only these files read in another way:
READERS = {
    "kernel/files.py": "the one reader",
    "guard/lease.py": "a number that amp-nova writes",
    "guard/pauses.py": "pauses that amp-nova writes",
    "guard/record.py": "records that amp-nova writes, checked and bounded",
    "host/calibration/file.py": "a file of the operator",
    "host/calibration/kernels.py": "a pipe of its own",
    "host/counters/perf.py": "counters, of a fixed size",
    "host/counters/perf_vcpu.py": "counters, of a fixed size",
}
OTHER_READERS = (".read_text", ".read_bytes", ".fdopen", "path.open", ")).open", "io.open")


def reader_faults(root: Path) -> list[str]:
    return [
        f"{path} may not call {called}"
        for path, nodes, _ in sources(root)
        if within(path, ("host", "kernel", "guard"), "/") and path not in READERS
        for node in nodes
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) != "os.open"
        if called in ("open", "os.read") or called.endswith(OTHER_READERS)
    ]


def name_faults(root: Path) -> list[str]:
    """A class has its name to itself over all of ``amp_nova``."""
    defined: dict[str, list[str]] = {}
    for path, nodes, _ in sources(root):
        for node in nodes if not path.startswith(LAB) else ():
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, []).append(path)
    return [f"{name}: {', '.join(paths)}" for name, paths in defined.items() if len(paths) > 1]


def words(name: str) -> set[str]:
    return {w.lower() for part in name.split("_") for w in re.findall(r"[A-Z]?[a-z]+", part)}


CHECKS = (
    import_faults,
    cycle_faults,
    decider_faults,
    size_faults,
    word_faults,
    name_faults,
    reader_faults,
)


@pytest.mark.parametrize("check", CHECKS)
def test_the_package_keeps_the_rules(check):
    """Imports go one way, one module decides and one writes; sizes and names are as agreed."""
    assert check(ROOT) == []


def test_exceptions_from_the_sizes_are_needed():
    """An exception whose reason has gone goes too."""
    assert set(LARGE) <= set(too_large(ROOT))


@pytest.mark.parametrize(
    ("refused", "modules"),
    [
        ("nova, libvirt, oslo_config, oslo_log, oslo_messaging", "amp_nova_lab.host"),
        ("amp_nova_lab, matplotlib, cliff, yaml", "amp_nova.cmd.agent, amp_nova.agent.service"),
        ("amp_nova_lab, matplotlib, cliff, yaml", "amp_nova.agent.wiring, amp_nova.guard.__main__"),
        ("amp_nova_lab, matplotlib, libvirt", "amp_nova.scheduling.host_fit, amp_nova.cmd.cli"),
    ],
    ids=["simulator", "agent", "host", "scheduler and commands"],
)
def test_programs_run_without_what_is_not_theirs(refused, modules):
    """The whole import closure: the simulator needs no hypervisor, a compute node no simulator."""
    program = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        for refused in {refused.split(", ")}:
            if name == refused or name.startswith(refused + "."):
                raise ImportError(f"{{name}} is imported")

sys.meta_path.insert(0, Refuse())
import {modules}
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def tree_of(root: Path, **files: str) -> Path:
    """A package tree; ``model__x`` is ``amp_nova/model/x.py``, ``lab__x`` is in the laboratory."""
    for name, text in files.items():
        path = root / "amp_nova" / (name.replace("__", "/") + ".py")
        if name.startswith("lab__"):
            path = root / LAB / path.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("model__x", "import yaml"),
        ("model__x", "from amp_nova.flavor import extra_specs"),
        ("control__x", "from amp_nova.policies import api"),
        ("model__x", "from amp_nova_lab.host import SimHost"),
        ("model__x", "def f():\n    import libvirt"),
        ("policies__x", "from amp_nova import host"),
        ("model__x", "from .. import host"),
        ("agent__loop", "from amp_nova.host import sensor"),
        ("agent__state__x", "from amp_nova.agent.publish import metrics"),
        ("agent__publish__metrics", "from amp_nova.agent.loop import Loop"),
        ("agent__service", "from amp_nova.host.writer import Writer"),
        ("lab__x", "from amp_nova.agent.service import run"),
        ("nova_plugins__x", "from amp_nova.agent import publish"),
        ("host__x", "from nova import objects"),
        ("tenant__figures", "import requests"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, path, text):
    """Rule 1: one import across a border, wherever it stands in the file, is one fault."""
    assert len(import_faults(tree_of(tmp_path, **{path: text}))) == 1


def test_a_circle_of_imports_is_found(tmp_path):
    """Rule 1: also when one of the imports is inside a function, or only for types."""
    root = tree_of(
        tmp_path,
        model__a="from amp_nova.model import b",
        model__b="def f():\n    from amp_nova.model.c import C",
        model__c="if TYPE_CHECKING:\n    from amp_nova.model.a import A",
    )

    assert cycle_faults(root) == ["model/a.py -> model/b.py -> model/c.py -> model/a.py"]
