# SPDX-License-Identifier: Apache-2.0
"""``amp-nova survey``: whom a booking would limit, from what instances used in the past days."""

import argparse
import textwrap
from bisect import bisect_right
from functools import partial
from typing import Any

from amp_nova.cmd.arguments import number, whole
from amp_nova.cmd.command import Answer, Report, progress, short
from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.flavor.extra_specs import examine
from amp_nova_lab import cpu_use
from amp_nova_lab.commands import figure
from amp_nova_lab.cpu_use import Row

COLUMNS = {
    "Flavor": "flavor",
    "Instance": "instance",
    "VCPUs": "vcpus",
    "Hours": "hours",
    "Median": "median_cores",
    "95 %": "p95_cores",
    "Max": "max_cores",
    "Over": "over_ratio",
    "Over Most": "over_most_ratio",
    "Throttled": "throttled_ratio",
    "Throttled Most": "throttled_most_ratio",
}
FELT_RATIO, PANELS_MAX, PANEL_IN = 0.01, 6, 3.6
LEGEND = """\
median, 95 %, max: pCPUs that the busiest vCPU used (or all, if an exporter does not count each), as
means over {0} s. over: share of the time with more use than booked; most: if it was on the fastest
core type. throttled: least and most share of the time spent waiting for the limit."""
CURVES = (  # colours that everybody can tell apart, and styles of lines for those who print in grey
    ("median_cores", "median", "#0072B2", "solid"),
    ("p95_cores", "95th percentile", "#E69F00", "dashed"),
    ("max_cores", "maximum", "#CC79A7", "dotted"),
)


class Survey(Report):
    """Show whom a booking would limit, by the CPU time that Prometheus knows of instances"""

    _epilog = """examples:
  amp-nova survey http://prometheus:9090 --booking m1.small=amp:pref_core=0.5
  amp-nova survey http://prometheus:9090 --booking 'm1.*=amp:pref_core=0.25' --coefficient 1.8
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("prometheus", metavar="URL", help="address of Prometheus")
        text = "pattern of flavors, and what they are to book; the first one that matches applies"
        add("--booking", action="append", required=True, metavar="FLAVOR=amp:KEY=VALUE", help=text)
        text = "of the fastest core type, if hosts have several; default 1"
        add("--coefficient", type=number(1, 100), default=1.0, metavar="C", help=text)
        add("--days", type=number(0.01, 31), default=7.0, metavar="D", help="default 7")
        add("--step", type=whole(10, 3600), default=300, metavar="S", help="seconds; default 300")
        add("--rows", type=whole(1, 10**6), default=20, metavar="N", help="most rows; default 20")
        add("--plot", metavar="FILE", help="plot how much instances use (needs matplotlib)")

    def answer(self, args: argparse.Namespace) -> Answer:
        """Ask Prometheus; raises ``AmpError`` for invalid input."""
        bookings = _bookings(args.booking)
        drawing = None if args.plot is None else figure.empty(args.plot)
        prometheus = cpu_use.RangeQueries(args.prometheus, args.days, args.step)
        instances = cpu_use.instances(prometheus, bookings)
        rows: list[Row] = []
        for refcores in sorted({i["refcores"] for i in instances.values()}):
            vcpus = {key: i["vcpus"] for key, i in instances.items() if i["refcores"] == refcores}
            progress(f"{len(vcpus)} instances, {refcores:g} refcores a vCPU")
            summary = partial(_summary, args.step, refcores, refcores / args.coefficient)
            summaries = cpu_use.summaries(prometheus, vcpus, summary)
            rows += [instances[key] | summaries[key] for key in vcpus if key in summaries]
        progress("")
        if not rows:
            rates = f"{cpu_use.VCPU_TIME} or {cpu_use.DOMAIN_TIME} over {args.step} s"
            raise AmpError(f"no rate of {rates}: {cpu_use.INSTALL} at least twice in that time")
        rows.sort(key=lambda r: (-r["over_most_ratio"], -r["throttled_most_ratio"], r["instance"]))
        flavors = [_flavor(name, rows) for name in sorted({row["flavor"] for row in rows})]
        if drawing is not None:
            _draw(drawing, flavors, rows, args)
        silent, more = len(instances) - len(rows), len(rows) - args.rows
        below = [f"{more} more rows: see --rows"] * (more > 0)
        below += [f"without usable CPU time in Prometheus: {silent} instances"] * (silent > 0)
        below += ["", *(f["verdict"] for f in flavors), "", LEGEND.format(args.step)]
        return Answer(
            tuple(COLUMNS),
            [[short(row[key]) for key in COLUMNS.values()] for row in rows[: args.rows]],
            {"silent": silent, "flavors": flavors, "instances": rows},
            below=below,
        )


def _bookings(texts: list[str]) -> dict[str, float]:
    """Reference cores of a vCPU by pattern; ``ConfigInvalid`` if a booking is not valid."""
    bookings: dict[str, float] = {}
    for text in texts:
        pattern, *pairs = text.replace("=amp:", " amp:", 1).split() or [""]
        specs = dict(pair.partition("=")[::2] for pair in pairs)
        _, errors = examine(specs, 1)
        plain = all(key.startswith("amp:") and "." not in key for key in specs)
        if not errors and not (plain and "amp:pref_core" in specs):
            errors = ("it needs amp:pref_core for all vCPUs, and may have other amp:* keys",)
        if errors:
            raise ConfigInvalid(f"--booking {text}: {errors[0]}; write FLAVOR=amp:pref_core=0.5")
        bookings.setdefault(pattern, float(specs["amp:pref_core"]))
    return bookings


def _summary(step_s: int, slow: float, fast: float, used: list[float]) -> dict[str, float]:
    """How much was used, and what limits of so many pCPUs would have cut."""
    used.sort()
    count, most = len(used), max(0.0, 1.0 - fast)
    return {
        "hours": count * step_s / 3600,
        "median_cores": used[count // 2],
        "p95_cores": used[int(count * 0.95)],
        "max_cores": used[-1],
        "over_ratio": 1.0 - bisect_right(used, slow) / count,
        "over_most_ratio": 1.0 - bisect_right(used, fast) / count,
        # Least if it was used evenly, most if in bursts that take the whole pCPU.
        "throttled_ratio": sum(1.0 - slow / u for u in used if u > slow) / count,
        "throttled_most_ratio": sum(u * most / (u + fast * (1.0 - u)) for u in used if u) / count,
    }


def _flavor(name: str, rows: list[Row]) -> Row:
    """What the booking means for all instances of a flavor; ``rows`` begin with the worst."""
    own = [row for row in rows if row["flavor"] == name]
    least, most = (sum(r[k] > FELT_RATIO for r in own) for k in ("over_ratio", "over_most_ratio"))
    refcores, vcpus = own[0]["refcores"], sum(row["vcpus"] for row in own)
    felt = f"{least}" if least == most else f"{least} to {most}"
    worst = f" (worst: {own[0]['instance']}, {own[0]['over_most_ratio'] * 100:.0f} % of it)" * (
        most > 0
    )
    return {
        "flavor": name,
        "instances": len(own),
        "vcpus": vcpus,
        "booked_refcores": vcpus * refcores,
        "affected_least": least,
        "affected_most": most,
        "verdict": f"{name}: {felt} of {len(own)} instances would feel {refcores:g} refcores a vCPU"
        f" for more than 1 % of the time{worst}; {vcpus * refcores:g} refcores booked in all",
    }


def _draw(drawing: Any, flavors: list[Row], rows: list[Row], args: Any) -> None:
    """How many instances use how much, a panel for each of the first few flavors."""
    some = flavors[:PANELS_MAX]
    drawing.set_size_inches(figure.WIDTH_IN, PANEL_IN * len(some))
    panels = drawing.subplots(len(some), squeeze=False)[:, 0]
    for axes, flavor in zip(panels, some, strict=True):
        own = [row for row in rows if row["flavor"] == flavor["flavor"]]
        shares = [n / len(own) for n in range(len(own) + 1)]
        for key, label, color, style in CURVES:
            used = [0.0, *sorted(row[key] for row in own)]
            axes.step(used, shares, color=color, where="post", label=label, linestyle=style)
        booked = own[0]["refcores"]
        fast = booked / args.coefficient
        axes.axvline(booked, color="black", label=f"booking: {booked:g} refcores")
        if fast < booked:
            label = f"on faster core types,\nfrom {fast:.3g} pCPUs"
            axes.axvspan(fast, booked, color="#999999", alpha=0.3, label=label)
        title = textwrap.fill(flavor["verdict"], 110)
        axes.set_title(title, fontsize=9, loc="left", parse_math=False)
        axes.set(xlabel=f"pCPUs used (means over {args.step} s)", ylabel="share of instances")
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize=8, frameon=False)
    figure.save(drawing, args.plot)
