# SPDX-License-Identifier: Apache-2.0
"""Reads the facts about a machine's CPUs from ``/sys`` and ``/proc``.

Any file may be absent, depending on kernel, architecture, hypervisor and container. A file that is
missing, empty or '(null)' is ignored; a file with garbage is ignored with a warning that names it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from amp_nova.exceptions import ConfigInvalid, TopologyUnknown
from amp_nova.hardware.designs import PMU_DESIGNS, CpuFacts, CpuModel, MachineFacts, Speeds
from amp_nova.kernel import files
from amp_nova.model import cpulist

CPUS = "sys/devices/system/cpu"
NO_VALUE = ("", "(null)", "<unknown>", "<not supported>")
WARNINGS_MAX = 10
"""Limits the warnings, as each of hundreds of CPUs may have the same file with garbage."""


class Tree:
    """The files under a root, and warnings about garbage in them."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self.garbage: list[str] = []

    def text(self, path: str) -> str | None:
        """The content of a file, ``None`` if it is missing or holds no value."""
        try:
            text = files.text(self.root / path).strip(" \t\n\0")
        except OSError:
            return None
        return None if text in NO_VALUE else text

    def number(self, path: str) -> int | None:
        """A non-negative number, ``None`` if there is none; the kernel writes -1 for unknown."""
        text = self.text(path)
        if text is None:
            return None
        if re.fullmatch(r"-?[0-9]{1,18}", text):
            return int(text) if int(text) >= 0 else None
        self.reject(path, text, "a number")
        return None

    def cpus(self, path: str) -> tuple[int, ...]:
        """The ids in a CPU list, none if there is no list."""
        text = self.text(path)
        if text is None:
            return ()
        try:
            return cpulist.parse(text)
        except ValueError:
            self.reject(path, text, "a list of CPUs")
            return ()

    def numbered(self, folder: str, name: str) -> list[int]:
        """The numbers N of all ``folder/nameN``, ascending."""
        try:
            entries = [p.name for p in (self.root / folder).iterdir()]
        except OSError:
            return []
        matches = (re.fullmatch(rf"{name}([0-9]{{1,6}})", e) for e in entries)
        return sorted(int(m[1]) for m in matches if m)

    def reject(self, path: str, text: str, expected: str) -> None:
        """Record that a file does not hold what was ``expected``."""
        self.garbage.append(f"/{path} is ignored: {text[:20]!r} is not {expected}")


def read_facts(root: str | Path) -> MachineFacts:
    """Everything that the machine under ``root`` reports about its CPUs.

    Raises ``ConfigInvalid`` if that is not a directory, ``TopologyUnknown`` without a CPU in it.
    """
    tree = Tree(root)
    if not tree.root.is_dir():
        raise ConfigInvalid(f"'{root}' is not a directory; name the one that holds sys and proc")
    present = tree.numbered(CPUS, "cpu")
    if not present:
        raise TopologyUnknown(
            f"'{root}' has no {CPUS}/cpu0; name the directory that holds sys and proc"
        )
    online = _online(tree, present)
    described = cpuinfo(tree)
    isolated = tree.cpus(f"{CPUS}/isolated")
    policies = _policies(tree)
    cpus = []
    for cpu in present:
        if cpu not in online:
            cpus.append(CpuFacts(cpu, online=False))
            continue
        cpufreq = policies.get(cpu, f"{CPUS}/cpu{cpu}/cpufreq")
        facts = _cpu(tree, cpu, described.get(cpu, {}), cpufreq)
        cpus.append(replace(facts, isolated=cpu in isolated))
    return MachineFacts(tuple(cpus), _pmus(tree), (*_warnings(tree), *_not_kept(tree, online)))


def _not_kept(tree: Tree, online: Iterable[int]) -> Iterator[str]:
    """Warnings about who else decides what runs: a BPF scheduler, or the hypervisor on IBM Z."""
    if tree.text("sys/kernel/sched_ext/state") == "enabled":
        yield "a sched_ext scheduler runs here, which may ignore the limits and weights of cgroups"
    kinds = {c: tree.text(f"{CPUS}/cpu{c}/polarization") for c in online}
    for kind, time in (("vertical:low", "no time"), ("vertical:medium", "part of a CPU")):
        if cpus := [c for c, found in kinds.items() if found == kind]:
            where = f"pCPUs {cpulist.show(cpus)} have {kind} polarization"
            yield f"{where}: the hypervisor guarantees them {time}"


def online_mask(root: str | Path) -> frozenset[int]:
    """Ids of the CPUs that are online now; cheap enough for every cycle."""
    tree = Tree(root)
    listed = tree.cpus(f"{CPUS}/online")
    return frozenset(listed) if listed else _online(tree, tree.numbered(CPUS, "cpu"))


def _online(tree: Tree, present: Iterable[int]) -> frozenset[int]:
    """Online CPUs, from the machine's list or else from each CPU's file (without one: online)."""
    listed = frozenset(tree.cpus(f"{CPUS}/online")) & frozenset(present)
    return listed or frozenset(c for c in present if tree.number(f"{CPUS}/cpu{c}/online") != 0)


def _cpu(tree: Tree, cpu: int, info: Mapping[str, str], cpufreq: str) -> CpuFacts:
    here = f"{CPUS}/cpu{cpu}"
    model = _model(info)
    if (midr := _midr(tree, here)) is not None:
        model = replace(model, implementer=midr[0], part=midr[1])
    package = tree.number(f"{here}/topology/physical_package_id")
    core_id = tree.number(f"{here}/topology/core_id")
    ids = (_number(info.get(key, "")) for key in ("physical id", "core id"))
    own_package, own_core = (None if number is None or number < 0 else number for number in ids)
    return CpuFacts(
        id=cpu,
        siblings=tree.cpus(f"{here}/topology/core_cpus_list")
        or tree.cpus(f"{here}/topology/thread_siblings_list"),
        package=own_package if package is None else package,
        cluster=tree.number(f"{here}/topology/cluster_id"),
        core_id=own_core if core_id is None else core_id,
        llc=_llc(tree, here),
        model=model,
        speeds=Speeds(
            capacity=tree.number(f"{here}/cpu_capacity"),
            highest_perf=tree.number(f"{here}/acpi_cppc/highest_perf"),
            max_freq_khz=tree.number(f"{cpufreq}/cpuinfo_max_freq"),
            base_freq_khz=tree.number(f"{cpufreq}/base_frequency"),
        ),
    )


def _midr(tree: Tree, here: str) -> tuple[int, int] | None:
    """Implementer and part from MIDR_EL1, which the arm64 kernel exposes for each CPU."""
    path = f"{here}/regs/identification/midr_el1"
    text = tree.text(path)
    if text is None:
        return None
    if not re.fullmatch(r"(0x)?[0-9a-f]{1,16}", text):
        tree.reject(path, text, "a register")
        return None
    midr = int(text, 16)
    return (midr >> 24 & 0xFF, midr >> 4 & 0xFFF) if midr else None


def _llc(tree: Tree, here: str) -> int | None:
    """The lowest CPU that shares the cache of the highest level, which need not be level 3."""
    best: tuple[int, int] | None = None
    for index in tree.numbered(f"{here}/cache", "index"):
        cache = f"{here}/cache/index{index}"
        level = tree.number(f"{cache}/level")
        if level is None or tree.text(f"{cache}/type") == "Instruction":
            continue
        shared = tree.cpus(f"{cache}/shared_cpu_list")
        if shared and (best is None or level > best[0]):
            best = (level, shared[0])
    return best[1] if best else None


def _policies(tree: Tree) -> dict[int, str]:
    """The directory of each CPU's frequency policy."""
    policies: dict[int, str] = {}
    for policy in tree.numbered(f"{CPUS}/cpufreq", "policy"):
        path = f"{CPUS}/cpufreq/policy{policy}"
        related = tree.text(f"{path}/related_cpus") or tree.text(f"{path}/affected_cpus") or ""
        for cpu in related.split():
            if cpu.isascii() and cpu.isdigit():
                policies[int(cpu)] = path
    return policies


def _pmus(tree: Tree) -> tuple[tuple[str, frozenset[int]], ...]:
    """The CPUs of each of Intel's PMUs that belongs to one core type and has CPUs."""
    pmus = []
    for name in PMU_DESIGNS:
        for folder in ("sys/devices", "sys/bus/event_source/devices"):
            if cpus := tree.cpus(f"{folder}/{name}/cpus"):
                pmus.append((name, frozenset(cpus)))
                break
    return tuple(pmus)


def _warnings(tree: Tree) -> tuple[str, ...]:
    garbage = list(dict.fromkeys(tree.garbage))
    if len(garbage) > WARNINGS_MAX:
        more = len(garbage) - WARNINGS_MAX
        garbage = [*garbage[:WARNINGS_MAX], f"{more} more files are ignored for the same reason"]
    return tuple(garbage)


def cpuinfo(tree: Tree) -> dict[int, dict[str, str]]:
    """The entries of ``/proc/cpuinfo`` by CPU id.

    Lines outside any entry (old Arm kernels) apply to all CPUs.
    """
    shared: dict[str, str] = {}
    own: dict[int, dict[str, str]] = {}
    for block in (tree.text("proc/cpuinfo") or "").split("\n\n"):
        pairs = (line.split(":", 1) for line in block.splitlines() if ":" in line)
        values = {key.strip(): value.strip() for key, value in pairs}
        cpu = _number(values.pop("processor", ""))
        if cpu is None:
            shared |= values
        else:
            own[cpu] = values
    return {cpu: shared | values for cpu, values in own.items()}


def _model(values: Mapping[str, str]) -> CpuModel:
    vendor = values.get("vendor_id")
    flags = values.get("flags", "").split()
    return CpuModel(
        vendor=vendor,
        family=_number(values.get("cpu family", "")),
        # on POWER, "model" is the name of the machine
        model=_number(values.get("model", "")) if vendor else None,
        implementer=_number(values.get("CPU implementer", "")),
        part=_number(values.get("CPU part", "")),
        uarch=values.get("uarch"),
        hybrid="hybrid_cpu" in flags or "hybrid" in flags,
        virtual="hypervisor" in flags,
    )


def _number(text: str) -> int | None:
    try:
        return int(text, 16) if text.startswith("0x") else int(text)
    except ValueError:
        return None
