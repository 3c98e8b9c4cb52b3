"""Sovereign Cloud Stack: do shared-core servers get 20 % of a core in 99 % of the time?"""

from panels import PROJECTS, Dashboard, Panel, Query, Row

OF = 'project=~"$project"'
SHARED = f'amp_instance_scs_info{{cpu_type="shared-core", {OF}}}'
ON_SERVER = "* on (job, instance, domain, resource, project) group_left ()"

DASHBOARD = Dashboard(
    "amp-nova-scs",
    "amp-nova / SCS",
    "Do shared-core servers get 20 % of a core in 99 % of the time?",
    (PROJECTS,),
    (
        Row(
            "30 days",
            (
                Panel(
                    "Promises kept",
                    "Share of the servers with scs:cpu-type=shared-core that missed at most 432 "
                    "minutes, which is 1 % of a month.",
                    "percentunit",
                    (Query("min(cloud:amp_scs_promises_kept:ratio30d)", "kept"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Minutes kept by the worst server",
                    "Share of the minutes with demand that delivered at least 20 % of a core. "
                    "Stricter than the promise, which counts minutes without demand as kept.",
                    "percentunit",
                    (Query(f"min(resource:amp_scs_minutes_kept:ratio30d{{{OF}}})", "kept"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Minutes missed by the worst server",
                    "The promise allows 432.",
                    "short",
                    (Query(f"max(resource:amp_scs_minutes_missed:sum30d{{{OF}}})", "missed"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Servers by promise",
                    "Number of servers by the CPU type of their flavor.",
                    "none",
                    (
                        Query(
                            f"count by (cpu_type) (amp_instance_scs_info{{{OF}}})", "{{cpu_type}}"
                        ),
                    ),
                    "stat",
                    6,
                ),
                Panel(
                    "Servers that missed the most minutes",
                    "Minutes of the last 30 days in which a server wanted 20 % of a core and got "
                    "less. Each series links to its server.",
                    "short",
                    (
                        Query(
                            f"topk(10, resource:amp_scs_minutes_missed:sum30d{{{OF}}})",
                            "{{resource}}",
                        ),
                    ),
                    width=24,
                    link=("amp-nova-instance", "resource"),
                ),
            ),
        ),
        Row(
            "Now",
            (
                Panel(
                    "Delivered over promised, while in demand",
                    "The ten vCPUs that get least. 1 is 20 % of a core, or 95 % of the booking.",
                    "short",
                    (
                        Query(
                            f"bottomk(10, amp_vcpu_delivered_ratio {ON_SERVER} {SHARED} / 0.95)",
                            "{{domain}}/{{vcpu}}",
                        ),
                    ),
                    link=("amp-nova-instance", "resource"),
                ),
                Panel(
                    "Delivered to servers by promise",
                    "Reference cores, including what crowded-core servers get of the rest.",
                    "short",
                    (
                        Query(
                            "sum by (cpu_type) (instance:amp_delivered_refcores:sum "
                            "* on (job, instance, domain, resource, project) group_left (cpu_type) "
                            f"amp_instance_scs_info{{{OF}}})",
                            "{{cpu_type}}",
                        ),
                    ),
                    "stacked",
                ),
            ),
        ),
    ),
)
