"""The result of a scenario: what is measured for every guest, as JSON and as a table."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from amp_nova.accounting import slowdown as slowdown_
from amp_nova.flavor.extra_specs import VcpuBooking
from amp_nova.sim.host import Outcome, SimHost
from amp_nova.sim.scenarios.scenario import Guest, Scenario
from amp_nova.sim.windows import Delivered

DIGITS = 6


@dataclass(frozen=True, slots=True)
class VmResult:
    """One guest; ``doc/source/user/simulator.rst`` defines every number."""

    progress_refcores: float
    fast_share: float | None
    slowdown: float | None
    completion_s: float | None
    booked_refcores: float | None
    delivered_ratio: float | None
    delivered_ratio_min: float | None
    delivered_ratio_max: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The whole run."""

    scenario: str
    policy: str
    duration_s: float
    throughput: float | None
    asp: float | None
    unfairness: float | None
    migrations: int
    cross_llc_migrations: int
    fast_idle_ratio: float
    vms: dict[str, VmResult]


def of_run(
    scenario: Scenario, policy: str, host: SimHost, delivered: Mapping[str, Delivered]
) -> Result:
    """The result of a run that has ended; ``delivered`` by the names of booked guests."""
    outcomes = {g.name: host.outcome(g.name) for g in scenario.guests}
    vms = {
        g.name: _of_guest(
            g, outcomes[g.name], delivered.get(g.name, Delivered()), scenario.reference_ips
        )
        for g in scenario.guests
    }
    slowdowns = [v.slowdown for v in vms.values() if v.slowdown is not None]
    gains = [o.speed / o.alone_slowest - 1.0 for o in outcomes.values() if o.alone_slowest]
    fastest = scenario.topology.core_types[-1].name
    fast_s = len(scenario.topology.pcpus_of(fastest)) * scenario.duration_s
    busy_s = sum(m.run_s[-1] for o in outcomes.values() for m in o.meters)
    return Result(
        scenario=scenario.name,
        policy=policy,
        duration_s=scenario.duration_s,
        throughput=sum(v.progress_refcores for v in vms.values()) / len(vms) if vms else None,
        asp=sum(gains) if vms else None,
        unfairness=slowdown_.unfairness(slowdowns),
        migrations=sum(o.migrations for o in outcomes.values()),
        cross_llc_migrations=sum(o.cross_llc_migrations for o in outcomes.values()),
        fast_idle_ratio=max(0.0, 1.0 - busy_s / fast_s),
        vms=vms,
    )


def _of_guest(
    guest: Guest, outcome: Outcome, delivered: Delivered, reference_ips: float | None
) -> VmResult:
    run_s = sum(sum(m.run_s) for m in outcome.meters)
    fast_s = sum(m.run_s[-1] for m in outcome.meters)
    return VmResult(
        progress_refcores=outcome.speed,
        fast_share=fast_s / run_s if run_s else None,
        slowdown=outcome.alone_fastest / outcome.speed if outcome.speed else None,
        completion_s=outcome.completion_s,
        booked_refcores=_booked_refcores(guest.booking.vcpus, reference_ips),
        delivered_ratio=delivered.ratio,
        delivered_ratio_min=delivered.least,
        delivered_ratio_max=delivered.most,
    )


def _booked_refcores(vcpus: Iterable[VcpuBooking], reference_ips: float | None) -> float | None:
    """Mean over the vCPUs with a booking; ``None`` for Ips without a reference."""
    booked = [
        v.ips / reference_ips if v.ips is not None and reference_ips is not None else v.refcores
        for v in vcpus
        if v.kind != "best_effort"
    ]
    known = [b for b in booked if b is not None]
    return sum(known) / len(known) if known and len(known) == len(booked) else None


def rounded(value: object) -> object:
    """The same value with every float in it rounded for JSON."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, DIGITS) + 0.0 if isinstance(value, float) else value


def to_json(result: Result) -> str:
    """One JSON object; equal results give equal bytes."""
    return json.dumps(rounded(asdict(result)), indent=2, allow_nan=False)


COLUMNS = {
    "vm": "name",
    "booked": "booked_refcores",
    "delivered": "delivered_ratio",
    "least": "delivered_ratio_min",
    "most": "delivered_ratio_max",
    "progress": "progress_refcores",
    "on fast": "fast_share",
    "slowdown": "slowdown",
    "done at s": "completion_s",
}


def to_table(result: Result) -> str:
    """The same as text: a line per guest, then the host."""
    rows = [list(COLUMNS)]
    for name, vm in result.vms.items():
        values = {"name": name, **asdict(vm)}
        rows.append([cell(values[key]) for key in COLUMNS.values()])
    head = f"{result.scenario}: {result.duration_s:g} s, best-effort policy {result.policy}"
    host = (
        f"throughput {cell(result.throughput)}, ASP {cell(result.asp)}, "
        f"unfairness {cell(result.unfairness)}, migrations {result.migrations} "
        f"({result.cross_llc_migrations} between caches), "
        f"fast cores idle {cell(result.fast_idle_ratio)}"
    )
    return "\n".join([head, "", *aligned(rows), "", host])


def sections(tables: Mapping[str, list[list[str]]]) -> str:
    """Several tables, each under its heading."""
    return "\n\n".join("\n".join([name, *aligned(rows)]) for name, rows in tables.items())


def aligned(rows: list[list[str]]) -> list[str]:
    """The lines of a table: the first column left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def cell(value: object) -> str:
    """A value in a table: four significant digits, a dash for ``None``."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
