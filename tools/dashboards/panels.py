# SPDX-License-Identifier: Apache-2.0
"""Panels and dashboards as plain values, and the JSON that Grafana loads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueTextMode,
    GraphDrawStyle,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef("prometheus", "${datasource}")
REFCORES, PCPUS, TIMES = "suffix: refcores", "suffix: pCPUs", "suffix: x"
PER_MINUTE, IPS, SHARE, COUNT = "cpm", "si:ins/s", "percentunit", "none"

# The palette of Okabe and Ito: people with any kind of colour blindness can tell its colours apart.
BLUE, SKY, ORANGE, YELLOW = "#0072B2", "#56B4E9", "#E69F00", "#F0E442"
GREEN, VERMILION, PURPLE, GREY = "#009E73", "#D55E00", "#CC79A7", "#999999"
GOOD, WARN, BAD = GREEN, ORANGE, VERMILION
CAUSES = {
    "throttle": ORANGE,
    "contention": VERMILION,
    "core_type": PURPLE,
    "frequency": YELLOW,
    "smt": SKY,
}
COLOURS = {"booked": GREY, "delivered": BLUE, "best effort": SKY}
"""Of series that have the same name everywhere. All others are shades of blue."""
YES_NO = {"1": ("yes", GOOD), "0": ("no", BAD)}


def at_least(good: float) -> tuple[tuple[float | None, str], ...]:
    """Steps of a value that is bad below ``good``."""
    return ((None, BAD), (good, GOOD))


def at_most(warn: float, bad: float) -> tuple[tuple[float | None, str], ...]:
    """Steps of a value that is good below ``warn``, and bad from ``bad`` on."""
    return ((None, GOOD), (warn, WARN), (bad, BAD))


NONE_WANTED = ((None, GOOD), (1, BAD))


@dataclass(frozen=True)
class Query:
    """An expression, and the legend of its series, which may be dashed."""

    expression: str
    legend: str
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel.

    ``kind``: ``lines``, ``stacked``, ``stat`` (the last value) or ``name`` (the legend alone);
    ``link``: uid and label to go to; ``steps``: colours from which value on; ``states``: words and
    colours of values.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"
    width: int = 12
    link: tuple[str, str] | None = None
    steps: tuple[tuple[float | None, str], ...] = ()
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A heading and the panels below it."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice that the dashboard offers: the values of a label of a metric."""

    name: str
    label: str
    query: str
    several: bool = True


@dataclass(frozen=True)
class Dashboard:
    """One dashboard; ``question`` is what it answers."""

    uid: str
    title: str
    question: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]


JOB = Variable("job", "Job", "label_values(amp_build_info, job)", several=False)
HOSTS = Variable("host", "Host", 'label_values(amp_build_info{job="$job"}, instance)')
HOST = Variable("host", "Host", HOSTS.query, several=False)
PROJECTS = Variable("project", "Project", 'label_values(amp_instance_info{job="$job"}, project)')
OF_JOB = 'job="$job"'
ON_HOST = f'{OF_JOB}, instance="$host"'
ON_HOSTS = f'{OF_JOB}, instance=~"$host"'


def figure(
    title: str, description: str, unit: str, expression: str, legend: str, width: int, **more: Any
) -> Panel:
    """The last value of one series; ``more``: of ``Panel``."""
    return Panel(title, description, unit, (Query(expression, legend),), "stat", width, **more)


def unenforced(selector: str) -> Panel:
    """Bookings that the selected hosts do not enforce."""
    return figure(
        "vCPUs without their booking",
        "Bookings that are not enforced, without those that an operator paused.",
        COUNT,
        f'sum(amp_host_unenforced_vcpus{{{selector}, reason!="excluded"}}) or vector(0)',
        "vCPUs",
        6,
        steps=NONE_WANTED,
    )


def shortfall(metric: str, selector: str) -> Panel:
    """What the selected instances wanted, had booked and did not get."""
    rate = f"rate({metric}{{{selector}}}[$__rate_interval])"
    return Panel(
        "Shortfall by cause",
        "Reference cores that were booked and wanted, but not delivered.",
        REFCORES,
        (Query(f"sum by (cause) ({rate})", "{{cause}}"),),
        "stacked",
    )


def core_time(metric: str, selector: str, title: str, description: str) -> Panel:
    """Where the selected instances' vCPUs run."""
    rate = f"rate({metric}{{{selector}}}[$__rate_interval])"
    query = Query(f"sum by (core_type) ({rate})", "{{core_type}}")
    return Panel(title, description, PCPUS, (query,), "stacked")


def to_json(board: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.question)
        .tags(["amp-nova"])
        .refresh("30s")
        .time("now-3h", "now")
        .timezone("browser")
        .readonly()
        .link(_menu())
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus")
        )
    )
    for variable in (JOB, *board.variables):
        built = built.with_variable(_variable(variable))
    # Any other labels of the targets, such as rack or region, can be chosen here.
    built = built.with_variable(
        dashboard.AdHocVariable("filters").label("Filters").datasource(SOURCE)
    )
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(_panel(panel))
    return JSONEncoder(sort_keys=True, indent=2).encode(built.build()) + "\n"


def _menu() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("amp-nova")
        .type(DashboardLinkType.DASHBOARDS)
        .tags(["amp-nova"])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _variable(variable: Variable) -> dashboard.QueryVariable:
    built = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .query(variable.query)
        .datasource(SOURCE)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
    )
    if variable.several:
        built = built.multi(True).include_all(True).all_value(".*")
    return built


def _panel(panel: Panel) -> timeseries.Panel | stat.Panel:
    single = panel.kind in ("stat", "name")
    built = _stat(panel) if single else _timeseries(panel)
    built = (
        built.title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(4 if single else 8)
    )
    built = _coloured(built, panel)
    for number, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery()
            .expr(query.expression)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + number))
        )
        built = built.with_target(target.instant() if single else target.range())
    if panel.link is not None:
        uid, label = panel.link
        name = {"amp-nova-host": "host", "amp-nova-instance": "resource"}[uid]
        url = f"/d/{uid}?var-{name}=${{__field.labels.{label}}}&${{datasource:queryparam}}"
        link = dashboard.DashboardLink(f"Open this {name}")
        built = built.data_links(
            [link.type(DashboardLinkType.LINK).url(url + "&${__url_time_range}")]
        )
    return built


def _coloured(built: Any, panel: Panel) -> Any:
    """The panel with its steps and states, or else with the colours of its series' names."""
    colour = dashboard.FieldColor()
    if panel.steps:
        steps = [Threshold(value, colour) for value, colour in panel.steps]
        limits = dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
        built = built.thresholds(limits).color_scheme(colour.mode(FieldColorModeId.THRESHOLDS))
    else:
        mode = FieldColorModeId.FIXED if panel.kind in ("stat", "name") else FieldColorModeId.SHADES
        built = built.color_scheme(colour.mode(mode).fixed_color(BLUE))
    if panel.states:
        states = {v: ValueMappingResult(text, colour) for v, (text, colour) in panel.states.items()}
        built = built.mappings([ValueMap(states)])
    legends = {query.legend for query in panel.queries}
    named = CAUSES if "{{cause}}" in legends else COLOURS.keys() & legends
    for name in sorted(named):
        fixed = {"mode": "fixed", "fixedColor": (CAUSES | COLOURS)[name]}
        built = built.override_by_name(name, [DynamicConfigValue("color", fixed)])
    return built


def _stat(panel: Panel) -> stat.Panel:
    calculated = common.ReduceDataOptions().calcs(["lastNotNull"])
    mode = BigValueTextMode.NAME if panel.kind == "name" else BigValueTextMode.AUTO
    return stat.Panel().reduce_options(calculated).text_mode(mode)


def _timeseries(panel: Panel) -> timeseries.Panel:
    legend = (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    built = (
        timeseries.Panel()
        .draw_style(GraphDrawStyle.LINE)
        .line_interpolation(LineInterpolation.STEP_AFTER)
        .line_width(1 if panel.kind == "stacked" else 2)
        .min(0)
        .legend(legend)
    )
    if panel.steps:
        style = common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
        built = built.thresholds_style(style)
    if panel.kind == "stacked":
        stacking = common.StackingConfig().mode(StackingMode.NORMAL).group("A")
        built = built.fill_opacity(60).stacking(stacking)
    for number, query in enumerate(panel.queries):
        if query.dashed:
            style = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
            built = built.override_by_query(chr(ord("A") + number), [style])
    return built
