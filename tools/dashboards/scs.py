# SPDX-License-Identifier: Apache-2.0
"""Sovereign Cloud Stack: do shared-core servers get 20 % of a core in 99 % of the time?"""

from panels import (
    COUNT,
    OF_JOB,
    PROJECTS,
    REFCORES,
    SHARE,
    Dashboard,
    Panel,
    Query,
    Row,
    at_least,
    at_most,
    figure,
)

OF = f'{OF_JOB}, project=~"$project"'
SERVER = "on (job, instance, domain, resource, project)"


def recent(part: str) -> str:
    """What was counted of the delivered ratio of shared-core servers in the last five minutes."""
    counted = f"increase(amp_instance_delivered_ratio_{part}{{{OF}}}[5m])"
    shared = f'amp_instance_scs_vcpus{{cpu_type="shared-core", {OF}}}'
    return f"sum by (resource) ({counted} and {SERVER} {shared})"


DASHBOARD = Dashboard(
    "amp-nova-scs",
    "amp-nova / SCS",
    "Do shared-core servers get 20 % of a core in 99 % of the time?",
    (PROJECTS,),
    (
        Row(
            "30 days",
            (
                figure(
                    "Promises kept",
                    "Share of the servers with scs:cpu-type=shared-core that missed at most 432 "
                    "minutes, which is 1 % of a month.",
                    SHARE,
                    f"cloud:amp_scs_promises_kept:ratio30d{{{OF_JOB}}}",
                    "kept",
                    6,
                    steps=at_least(1),
                ),
                figure(
                    "Minutes kept by the worst server",
                    "Share of the minutes with demand that delivered at least 20 % of a core. "
                    "Stricter than the promise, which counts minutes without demand as kept.",
                    SHARE,
                    f"min(resource:amp_scs_minutes_kept:ratio30d{{{OF}}})",
                    "kept",
                    6,
                    steps=at_least(0.99),
                ),
                figure(
                    "Minutes missed by the worst server",
                    "The promise allows 432.",
                    "m",
                    f"max(resource:amp_scs_minutes_missed:sum30d{{{OF}}})",
                    "missed",
                    6,
                    steps=at_most(216, 432),
                ),
                figure(
                    "Servers by promise",
                    "Number of servers by the CPU type of their flavor.",
                    COUNT,
                    f"count by (cpu_type) (amp_instance_scs_vcpus{{{OF}}})",
                    "{{cpu_type}}",
                    6,
                ),
                Panel(
                    "Servers that missed the most minutes",
                    "Minutes of the last 30 days in which a server wanted 20 % of a core and got "
                    "less. Each series links to its server.",
                    "m",
                    (
                        Query(
                            f"topk(10, resource:amp_scs_minutes_missed:sum30d{{{OF}}})",
                            "{{resource}}",
                        ),
                    ),
                    width=24,
                    link=("amp-nova-instance", "resource"),
                    steps=at_most(216, 432),
                ),
            ),
        ),
        Row(
            "Now",
            (
                Panel(
                    "Delivered over promised, while in demand",
                    "Mean of the last five minutes, for the ten servers that get least. 100 % is "
                    "20 % of a core for each vCPU, or 95 % of the booking.",
                    SHARE,
                    (
                        Query(
                            f"bottomk(10, {recent('sum')} / ({recent('count')} > 0) / 0.95)",
                            "{{resource}}",
                        ),
                    ),
                    link=("amp-nova-instance", "resource"),
                    steps=at_least(1),
                ),
                Panel(
                    "Delivered to servers by promise",
                    "Reference cores, including what crowded-core servers get of the rest.",
                    REFCORES,
                    (
                        Query(
                            f"sum by (cpu_type) (amp_instance_delivered_refcores * {SERVER} "
                            f"group_left (cpu_type) (amp_instance_scs_vcpus{{{OF}}} > bool 0))",
                            "{{cpu_type}}",
                        ),
                    ),
                    "stacked",
                ),
            ),
        ),
    ),
)
