# SPDX-License-Identifier: Apache-2.0
"""One instance: does it get what it booked, and if not, why?"""

from panels import (
    COUNT,
    IPS,
    OF_JOB,
    PROJECTS,
    REFCORES,
    SHARE,
    TIMES,
    Dashboard,
    Panel,
    Query,
    Row,
    Variable,
    at_least,
    core_time,
    figure,
    shortfall,
)

OF = f'{OF_JOB}, resource="$resource"'
INSTANCE = Variable(
    "resource",
    "Instance",
    'label_values(amp_instance_info{job="$job", project=~"$project"}, resource)',
    several=False,
)


def minutes(part: str, window: str, more: str = "") -> str:
    """What the instance's histogram of delivered ratios counted."""
    return f"sum(increase(amp_instance_delivered_ratio_{part}{{{OF}{more}}}[{window}]))"


MISSED = minutes("bucket", "$__range", ', le="0.95"')
KEPT = f"1 - {MISSED} / ({minutes('count', '$__range')} > 0)"
RECENT = f"{minutes('sum', '5m')} / ({minutes('count', '5m')} > 0)"
VERDICT = (
    figure(
        "Minutes kept",
        "Share of the minutes with demand that delivered at least 95 % of the booking, in the time "
        "range.",
        SHARE,
        KEPT,
        "kept",
        8,
        steps=at_least(0.99),
    ),
    Panel(
        "Not enforced because",
        "'amp-nova explain' on the host says more.",
        COUNT,
        (
            Query(
                f"sum by (reason) (amp_vcpu_unenforced_info{{{OF}}} "
                f"or amp_instance_problem_info{{{OF}}}) "
                'or label_replace(vector(0), "reason", "it is enforced", "", "")',
                "{{reason}}",
            ),
        ),
        "name",
        8,
    ),
    Panel(
        "What it is",
        "Name and flavor.",
        COUNT,
        (Query(f"amp_instance_info{{{OF}}}", "{{name}} ({{flavor}})"),),
        "name",
        8,
    ),
)
DELIVERED = (
    Panel(
        "Reference cores",
        "Booked and delivered. An instance that wants less gets less.",
        REFCORES,
        (
            Query(f"sum(amp_instance_booked_refcores{{{OF}}})", "booked", dashed=True),
            Query(f"sum(amp_instance_delivered_refcores{{{OF}}})", "delivered"),
        ),
    ),
    Panel(
        "Instructions per second",
        "Delivered (if counted) and booked.",
        IPS,
        (
            Query(f"sum(amp_instance_booked_ips{{{OF}}})", "booked", dashed=True),
            Query(f"sum(amp_instance_delivered_ips{{{OF}}})", "delivered"),
        ),
    ),
    Panel(
        "Delivered over booked, while in demand",
        "Mean of the last five minutes over the vCPUs.",
        SHARE,
        (Query(RECENT, "delivered over booked"),),
        steps=at_least(0.95),
    ),
    shortfall("amp_instance_shortfall_refcore_seconds_total", OF),
    core_time(
        "amp_instance_cpu_seconds_total",
        OF,
        "Core type over time",
        "How many pCPUs of each core type it keeps busy.",
    ),
)
CHARGEBACK = (
    Panel(
        "CPU time",
        "CPU seconds in the time range, on any core type.",
        "s",
        (Query(f"sum(increase(amp_instance_cpu_seconds_total{{{OF}}}[$__range]))", "CPU time"),),
        "stat",
    ),
    Panel(
        "Reference CPU time",
        "CPU seconds times the coefficient, in the time range.",
        "s",
        (
            Query(
                f"sum(increase(amp_instance_reference_cpu_seconds_total{{{OF}}}[$__range]))",
                "reference CPU time",
            ),
        ),
        "stat",
    ),
)


def by_vcpu(title: str, description: str, unit: str, metric: str, legend: str = "") -> Panel:
    """A metric of each vCPU."""
    query = Query(f"{metric}{{{OF}}}", f"vCPU {{{{vcpu}}}}{legend}")
    return Panel(title, description, unit, (query,))


VCPUS = (
    by_vcpu("Delivered", "To each vCPU.", REFCORES, "amp_vcpu_delivered_refcores"),
    by_vcpu(
        "Delivered over booked of each vCPU",
        "In the last 3 s, while in demand.",
        SHARE,
        "amp_vcpu_delivered_ratio",
    ),
    by_vcpu(
        "Limit in force",
        "CPU quota of each vCPU, as a share of one pCPU.",
        SHARE,
        "amp_vcpu_quota_cores",
    ),
    by_vcpu(
        "Speedup of its work",
        "Estimated speed on the fastest core type over the slowest, with its source.",
        TIMES,
        "amp_vcpu_speedup_ratio",
        " ({{source}})",
    ),
    by_vcpu(
        "Error of the speedup",
        "Standard error of the estimate.",
        TIMES,
        "amp_vcpu_speedup_error_ratio",
    ),
)

DASHBOARD = Dashboard(
    "amp-nova-instance",
    "amp-nova / Instance",
    "Does this instance get what it booked, and if not, why?",
    (PROJECTS, INSTANCE),
    (
        Row("Does it get its booking?", VERDICT),
        Row("Booked and delivered", DELIVERED),
        Row("Chargeback", CHARGEBACK),
        Row("vCPUs (with [exporter] detail = vcpu)", VCPUS),
    ),
)
