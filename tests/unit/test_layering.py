"""The architecture as a test: who may import whom, and how big a thing may grow.

Imports are read from the syntax tree, so nothing has to be installed and nothing is run. Every
check takes the root of a tree and returns sentences, which lets the last tests show on a small
wrong tree that the checks can fail.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import amp_nova

ROOT = Path(amp_nova.__file__).parent.parent
FILE_LINES_MAX = 410
FUNCTION_LINES_MAX = 40
FORBIDDEN_NAMES = {"utils", "common", "base", "manager", "helpers", "misc"}

# What decides, from the bottom up: a folder imports itself and those before it.
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

# The loop and its parts: what the agent and the simulator share.
LOOP = ("agent.loop", "agent.fast_loop", "agent.cycle", "agent.state")
SHARED = (*DECISIONS, "amp_nova.ports", "amp_nova.plugins", "amp_nova.exceptions")

# Files under the first path may import these modules (with what is below them) and the standard
# library, nothing else.
ONLY: dict[str, tuple[str, ...]] = {
    **{folder: (*DECISIONS[: PURE.index(folder) + 1], "amp_nova.exceptions") for folder in PURE},
    "exceptions.py": (),
    "ports.py": (*DECISIONS, "amp_nova.exceptions"),
    **{
        path: (*SHARED, *(f"amp_nova.{part}" for part in LOOP))
        for part in LOOP
        for path in (part.replace(".", "/"), part.replace(".", "/") + ".py")
    },
    "sim": (*SHARED, "amp_nova.sim", "amp_nova.agent.loop", "amp_nova.agent.cycle", "yaml"),
}

# The first module is imported by files under these paths and by no other.
ONLY_BY = {
    "amp_nova.host": ("host", "lab", "cmd", "agent/service.py"),
    "libvirt": ("host", "lab"),
    "nova": ("nova_plugins",),
    "keystoneauth1": ("agent/publish/placement.py",),
    "oslo_messaging": ("nova_plugins", "agent/publish/message_bus.py"),
    "stevedore": ("plugins.py",),
}

# Files under the first path import none of these.
NEVER = {
    "nova_plugins": ("amp_nova.agent", "amp_nova.host"),
    "host": ("amp_nova.agent", "amp_nova.cmd", "amp_nova.sim"),
    "agent": ("amp_nova.cmd", "amp_nova.sim"),
}


def within(name: str, prefixes: tuple[str, ...], separator: str) -> bool:
    return any(name == p or name.startswith(p + separator) for p in prefixes)


def sources(root: Path) -> Iterator[tuple[str, ast.Module, str]]:
    """Path within the package, syntax tree and text of every file."""
    package = root / "amp_nova"
    for path in sorted(package.rglob("*.py")):
        text = path.read_text()
        yield path.relative_to(package).as_posix(), ast.parse(text), text


def imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names of the modules that a file imports, wherever in the file."""
    for node in ast.walk(tree):
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
        for path, tree, _ in sources(root)
        for module in dict.fromkeys(imports(tree))
        if not may_import(path, module)
    ]


def may_import(path: str, module: str) -> bool:
    for where, allowed in ONLY.items():
        if within(path, (where,), "/") and not (is_stdlib(module) or within(module, allowed, ".")):
            return False
    for owned, users in ONLY_BY.items():
        if within(module, (owned,), ".") and not within(path, users, "/"):
            return False
    return not any(
        within(path, (where,), "/") and within(module, banned, ".")
        for where, banned in NEVER.items()
    )


def lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip())


def size_faults(root: Path) -> list[str]:
    faults = []
    for path, tree, text in sources(root):
        if lines(text) > FILE_LINES_MAX:
            faults.append(f"{path} has {lines(text)} lines, more than {FILE_LINES_MAX}")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = lines(ast.get_source_segment(text, node) or "")
                if ast.get_docstring(node):
                    length -= lines(ast.get_source_segment(text, node.body[0]) or "")
                if length > FUNCTION_LINES_MAX:
                    faults.append(f"{path}: {node.name} has {length} lines")
    return faults


def name_faults(root: Path) -> list[str]:
    package = root / "amp_nova"
    names = [*package.rglob("*.py"), *(p for p in package.rglob("*") if p.is_dir())]
    return [f"{p.name} says nothing" for p in names if p.stem in FORBIDDEN_NAMES]


@pytest.mark.parametrize("check", [import_faults, size_faults, name_faults])
def test_the_package_keeps_the_architecture(check):
    """Every file imports what its layer may, is small, and has a name that says something."""
    assert check(ROOT) == []


def test_the_simulator_runs_without_nova_libvirt_and_oslo():
    """The whole import closure of the simulated host does without what a hypervisor host has."""
    program = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("nova", "libvirt") or name.startswith("oslo"):
            raise ImportError(f"the simulator imports {name}")

sys.meta_path.insert(0, Refuse())
import amp_nova.sim.host
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def tree_of(root: Path, **files: str) -> Path:
    """A package tree; ``model__x`` is written to ``model/x.py``."""
    for name, text in files.items():
        path = root / "amp_nova" / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("model__x", "import yaml"),
        ("model__x", "from amp_nova.sim.host import SimHost"),
        ("model__x", "def f():\n    import libvirt"),
        ("policies__x", "from oslo_config import cfg"),
        ("policies__x", "from amp_nova import host"),
        ("model__x", "from .. import host"),
        ("admission__x", "from amp_nova.control import entitlement"),
        ("agent__loop", "from amp_nova.host import node"),
        ("agent__publish__metrics", "import amp_nova.host.node"),
        ("agent__publish__metrics", "import libvirt"),
        ("sim__x", "from amp_nova.agent.service import run"),
        ("sim__x", "import libvirt"),
        ("nova_plugins__x", "from amp_nova.agent import publish"),
        ("host__x", "from nova import objects"),
        ("cmd__x", "import libvirt"),
    ],
)
def test_a_wrong_import_is_found(tmp_path, path, text):
    """One import across a border, wherever it stands in the file, is one fault."""
    assert len(import_faults(tree_of(tmp_path, **{path: text}))) == 1


def test_right_imports_are_let_through(tmp_path):
    """What the architecture allows gives no fault."""
    root = tree_of(
        tmp_path,
        model__x="import math\nfrom amp_nova.exceptions import AmpError",
        policies__x="from amp_nova.model import topology",
        sim__x="import yaml\nfrom amp_nova.agent.loop import Loop",
        agent__service="from amp_nova.host.node import LibvirtHost",
        host__x="import libvirt",
        lab__x="import libvirt\nfrom amp_nova.host import cgroup",
        nova_plugins__x="from nova.scheduler import filters\nfrom amp_nova.wire import topics",
    )

    assert import_faults(root) == []


def test_too_much_and_nameless_is_found(tmp_path):
    """A long file, a long function and a name that says nothing are faults; a docstring is not."""
    body = "    x = 1\n" * FUNCTION_LINES_MAX
    root = tree_of(
        tmp_path,
        model__long="x = 1\n" * (FILE_LINES_MAX + 1),
        model__function="def f():\n" + body,
        model__documented='def f():\n    """\n' + body + '    """\n    return 1\n',
        model__utils="",
    )

    assert size_faults(root) == [
        "model/function.py: f has 41 lines",
        "model/long.py has 411 lines, more than 410",
    ]
    assert name_faults(root) == ["utils.py says nothing"]
