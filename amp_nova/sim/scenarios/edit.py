"""Changes to a scenario that was read: other cores, other bookings, other speedups.

Every function takes a document that ``scenario.read`` accepts and returns a changed copy, which
``scenario.read`` then checks as it checks a file.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from amp_nova.exceptions import ScenarioInvalid
from amp_nova.sim.scenarios.document import Value, nearest, of_plain
from amp_nova.sim.scenarios.hosts import RATE_LEAST, RATE_MOST

Speeds = dict[str, float]
"""Speeds on core types over the slowest, which is left out; empty: as the coefficients say."""
Shift = Callable[[int, Speeds, Speeds], Speeds]
"""New speedups of a vCPU, from its index, its present ones, and those by the coefficients."""


def with_cores(whole: Value, name: str, more: int) -> Value:
    """The scenario with more or fewer cores of a type; a type without cores is removed.

    A new core has all its hardware threads, and shares the last-level cache of the type's last one.
    """
    changed = whole.plain()
    types = {t["name"]: t for t in changed["host"]["core_types"]}
    if name not in types:
        raise ScenarioInvalid(f"there is no core type '{name}' here: {nearest(name, types)}")
    core_type = types[name]
    each, count = int(core_type.get("threads_per_core", 1)), int(core_type["count"])
    left = count + more * each
    if left < 0:
        raise ScenarioInvalid(
            f"core type '{name}' has {count // each} cores, so {more:+d} is too many: take "
            f"{count // each} at most"
        )
    core_type["count"] = str(left)
    if left == 0:
        _without_type(changed, name)
    elif llc := core_type.get("llc"):
        core_type["llc"] = (llc + [llc[-1]] * left)[:left]
    return of_plain(changed, whole.file)


def _without_type(changed: Any, name: str) -> None:
    """Remove a core type, and everything that refers to it in the VMs."""
    types = changed["host"]["core_types"]
    if name == _slowest(types)["name"]:
        raise ScenarioInvalid(
            f"core type '{name}' is the slowest, to which all speeds are relative: leave one core "
            "of it"
        )
    types[:] = [t for t in types if t["name"] != name]
    for vm in changed["vms"]:
        if vm.get("start_on") == name:
            del vm["start_on"]
        for _, part in _parts(vm):
            for key in ("speedup", "ipc"):
                part.get(key, {}).pop(name, None)


def with_booking(whole: Value, name: str, refcores: str) -> Value:
    """The scenario in which each vCPU of a VM books this much; ``0``: it books nothing."""
    changed = whole.plain()
    vms = {vm["name"]: vm for vm in changed["vms"]}
    if name not in vms:
        raise ScenarioInvalid(f"there is no VM '{name}' here: {nearest(name, vms)}")
    specs = vms[name].get("extra_specs", {})
    kept = {k: v for k, v in specs.items() if not k.startswith(("amp:pref_core", "amp:ips"))}
    vms[name]["extra_specs"] = kept if refcores == "0" else {**kept, "amp:pref_core": refcores}
    return of_plain(changed, whole.file)


def with_speedups(whole: Value, shifts: Mapping[str, Shift]) -> Value:
    """The scenario with other speedups of these VMs, in every phase."""
    changed = whole.plain()
    types = changed["host"]["core_types"]
    slowest = _slowest(types)
    usual = {
        t["name"]: float(t["coefficient"]) / float(slowest["coefficient"])
        for t in types
        if t is not slowest
    }
    for vm in changed["vms"]:
        inherited: bool | None = None  # whether the workload has one for all vCPUs
        for index, part in _parts(vm) if vm["name"] in shifts else ():
            given = part.get("speedup")
            if given is None and (inherited or "for_s" in part):
                continue
            inherited = given is not None if inherited is None else inherited
            own = {k: float(v) for k, v in (given or {}).items() if k != slowest["name"]}
            part["speedup"] = {
                n: repr(min(max(s, RATE_LEAST), RATE_MOST))
                for n, s in shifts[vm["name"]](index, {**usual, **own}, usual).items()
            }
    return of_plain(changed, whole.file)


def _slowest(types: Any) -> Any:
    return min(types, key=lambda t: float(t["coefficient"]))


def _parts(vm: Any) -> Iterator[tuple[int, Any]]:
    """Whatever may have a speedup: the workload, those of its vCPUs and the phases of each.

    Each comes with the index of the vCPU it belongs to, 0 for what is common to all.
    """
    workload = vm.setdefault("workload", {})
    for index, part in [(0, workload), *enumerate(workload.get("vcpus", []))]:
        yield index, part
        for phase in part.get("phases", []):
            yield index, phase
