"""Panels and dashboards as plain values, and the JSON that Grafana loads."""

from dataclasses import dataclass

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    StackingMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    DynamicConfigValue,
    VariableRefresh,
    VariableSort,
)

SOURCE = DataSourceRef("prometheus", "${datasource}")
WIDTH = 24
REFCORES = "short"
"""Reference cores are a number without a unit of Grafana's."""


@dataclass(frozen=True)
class Query:
    """An expression, and the legend of its series, which may be dashed."""

    expression: str
    legend: str
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel. ``kind``: ``lines``, ``stacked`` or ``stat``; ``link``: uid and label to go to."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"
    width: int = 12
    link: tuple[str, str] | None = None


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


HOSTS = Variable("host", "Host", 'label_values(amp_build_info{job="amp-nova"}, instance)')
HOST = Variable("host", "Host", HOSTS.query, several=False)
PROJECTS = Variable("project", "Project", "label_values(amp_instance_info, project)")


def shortfall(selector: str) -> Panel:
    """What the selected instances wanted, had booked and did not get."""
    rate = f"rate(amp_vcpu_shortfall_refcore_seconds_total{{{selector}}}[$__rate_interval])"
    return Panel(
        "Shortfall by cause",
        "Reference cores that were booked and wanted, but not delivered.",
        REFCORES,
        (Query(f"sum by (cause) ({rate})", "{{cause}}"),),
        "stacked",
    )


def core_time(selector: str, title: str, description: str) -> Panel:
    """Where the selected instances' vCPUs run."""
    rate = f"rate(amp_vcpu_cpu_seconds_total{{{selector}}}[$__rate_interval])"
    query = Query(f"sum by (core_type) ({rate})", "{{core_type}}")
    return Panel(title, description, "short", (query,), "stacked")


def to_json(found: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    built = (
        dashboard.Dashboard(found.title)
        .uid(found.uid)
        .description(found.question)
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
    for variable in found.variables:
        built = built.with_variable(_variable(variable))
    for row in found.rows:
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
    built = _stat() if panel.kind == "stat" else _timeseries(panel)
    built = (
        built.title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(panel.width)
        .height(4 if panel.kind == "stat" else 8)
    )
    for number, query in enumerate(panel.queries):
        target = (
            prometheus.Dataquery()
            .expr(query.expression)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + number))
        )
        built = built.with_target(target.instant() if panel.kind == "stat" else target.range())
    if panel.link is not None:
        uid, label = panel.link
        name = {"amp-nova-host": "host", "amp-nova-instance": "resource"}[uid]
        url = f"/d/{uid}?var-{name}=${{__field.labels.{label}}}&${{datasource:queryparam}}"
        link = dashboard.DashboardLink(f"Open this {name}")
        built = built.data_links(
            [link.type(DashboardLinkType.LINK).url(url + "&${__url_time_range}")]
        )
    return built


def _stat() -> stat.Panel:
    return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))


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
    if panel.kind == "stacked":
        stacking = common.StackingConfig().mode(StackingMode.NORMAL).group("A")
        built = built.fill_opacity(60).stacking(stacking)
    for number, query in enumerate(panel.queries):
        if query.dashed:
            style = DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]})
            built = built.override_by_query(chr(ord("A") + number), [style])
    return built
