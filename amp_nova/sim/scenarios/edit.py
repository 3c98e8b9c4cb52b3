"""Changes to a scenario that was read: other cores, other bookings, other speedups.

Every function returns a changed copy of the whole document, which ``scenario.read`` then checks as
it checks a file.
"""

import copy
import difflib
from collections.abc import Callable, Collection, Iterator, Mapping

import yaml

from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim.scenarios.document import Value
from amp_nova.sim.scenarios.hosts import PCPUS_MAX, RATE_LEAST, RATE_MOST, THREADS_MAX

Speeds = dict[str, float]
"""Speeds on core types over the slowest, which is left out; empty: as the coefficients say."""
Shift = Callable[[int, Speeds, Speeds], Speeds]
"""New speedups of a vCPU, from its index, its present ones, and those by the coefficients."""


def with_cores(whole: Value, name: str, more: int) -> Value:
    """The scenario with more or fewer cores of a type; a type without cores is removed.

    A new core has all its hardware threads, and shares the last-level cache of the type's last one.
    """
    changed = _copied(whole)
    listed = _entry(changed, "host", "core_types")
    types = {v.entries()["name"].text(): v for v in listed.items()}
    if name not in types:
        raise ScenarioInvalid(f"there is no core type '{name}' here{_nearest(name, types)}")
    keys = types[name].entries()
    threads = keys.get("threads_per_core")
    each = 1 if threads is None or threads.is_null else threads.whole(1, THREADS_MAX)
    count = keys["count"].whole(1, PCPUS_MAX)
    left = count + more * each
    if left < 0:
        raise ScenarioInvalid(
            f"core type '{name}' has {count // each} cores, so {more:+d} is too many: take "
            f"{count // each} at most"
        )
    if left == 0:
        _without_type(changed, types, name)
        return changed
    _set(types[name], "count", _scalar(str(left)))
    llc = keys.get("llc")
    if llc is not None and not llc.is_null:
        nodes = [v.node for v in llc.items()]
        llc.node.value = (nodes + [nodes[-1]] * left)[:left]
    return changed


def _without_type(whole: Value, types: Mapping[str, Value], name: str) -> None:
    """Remove a core type, and everything that refers to it in the VMs."""
    coefficients = {n: v.entries()["coefficient"].number(0) for n, v in types.items()}
    if len(types) == 1 or name == min(coefficients, key=lambda n: coefficients[n]):
        raise ScenarioInvalid(
            f"core type '{name}' is the slowest, to which all speeds are relative: leave one core "
            "of it"
        )
    listed = _entry(whole, "host", "core_types")
    listed.node.value = [v.node for n, v in types.items() if n != name]
    for vm in _vms(whole).values():
        keys = vm.entries()
        began = keys.get("start_on")
        if began is not None and not began.is_null and began.text() == name:
            _remove(vm, ["start_on"])
        for _, part in _parts(vm):
            for key in ("speedup", "ipc"):
                speeds = part.entries().get(key)
                if speeds is not None and not speeds.is_null:
                    _remove(speeds, [name])


def with_booking(whole: Value, name: str, refcores: str) -> Value:
    """The scenario in which each vCPU of a VM books this much; ``0``: it books nothing."""
    changed = _copied(whole)
    vms = _vms(changed)
    if name not in vms:
        raise ScenarioInvalid(f"there is no VM '{name}' here{_nearest(name, vms)}")
    vm = vms[name]
    specs = vm.entries().get("extra_specs")
    if specs is None or specs.is_null:
        _set(vm, "extra_specs", yaml.MappingNode("tag:yaml.org,2002:map", []))
        specs = vm.entries()["extra_specs"]
    booking = ("amp:pref_core", "amp:ips")
    _remove(specs, [k for k in specs.entries() if k.startswith(booking)])
    if refcores != "0":
        _set(specs, "amp:pref_core", _scalar(refcores))
    return changed


def with_speedups(whole: Value, shifts: Mapping[str, Shift]) -> Value:
    """The scenario with other speedups of these VMs, in every phase."""
    changed = _copied(whole)
    listed = _entry(changed, "host", "core_types").items()
    coefficients = {
        v.entries()["name"].text(): v.entries()["coefficient"].number(0) for v in listed
    }
    slowest = min(coefficients, key=lambda n: coefficients[n])
    usual = {n: c / coefficients[slowest] for n, c in coefficients.items() if n != slowest}
    for name, vm in _vms(changed).items():
        inherited: bool | None = None  # whether the workload has one for all vCPUs
        for index, part in _parts(vm) if name in shifts else ():
            given = part.entries().get("speedup")
            if given is not None and given.is_null:
                given = None
            if given is None and (inherited or "for_s" in part.entries()):
                continue
            inherited = given is not None if inherited is None else inherited
            speeds = dict(usual)
            if given is not None:
                speeds |= {k: v.number(0) for k, v in given.entries().items() if k != slowest}
            pairs: list[tuple[yaml.Node, yaml.Node]] = [
                (_scalar(n), _scalar(repr(min(max(s, RATE_LEAST), RATE_MOST))))
                for n, s in shifts[name](index, speeds, usual).items()
            ]
            _set(part, "speedup", yaml.MappingNode("tag:yaml.org,2002:map", pairs))
    return changed


def _parts(vm: Value) -> Iterator[tuple[int, Value]]:
    """Whatever may have a speedup: the workload, those of its vCPUs and the phases of each.

    Each comes with the index of the vCPU it belongs to, 0 for what is common to all.
    """
    workload = vm.entries().get("workload")
    if workload is None or workload.is_null:
        _set(vm, "workload", yaml.MappingNode("tag:yaml.org,2002:map", []))
        workload = vm.entries()["workload"]
    vcpus = workload.entries().get("vcpus")
    own = [] if vcpus is None or vcpus.is_null else vcpus.items()
    for index, part in [(0, workload), *enumerate(own)]:
        yield index, part
        phases = part.entries().get("phases")
        for phase in [] if phases is None or phases.is_null else phases.items():
            yield index, phase


def _copied(whole: Value) -> Value:
    return Value(copy.deepcopy(whole.node), whole.file, whole.path)


def _entry(whole: Value, *path: str) -> Value:
    for key in path:
        whole = whole.entries()[key]
    return whole


def _vms(whole: Value) -> dict[str, Value]:
    return {v.entries()["name"].text(): v for v in _entry(whole, "vms").items()}


def _scalar(text: str) -> yaml.Node:
    return yaml.ScalarNode("tag:yaml.org,2002:str", text)


def _set(mapping: Value, key: str, node: yaml.Node) -> None:
    """Replace a value of a mapping, or add it."""
    _remove(mapping, [key])
    mapping.node.value.append((_scalar(key), node))


def _remove(mapping: Value, keys: Collection[str]) -> None:
    mapping.node.value = [(k, v) for k, v in mapping.node.value if k.value not in keys]


def _nearest(word: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean '{near[0]}'?" if near else f": it has {', '.join(known) or 'none'}"
