"""One instance: does it get what it booked, and if not, why?"""

from panels import PROJECTS, REFCORES, Dashboard, Panel, Query, Row, Variable, core_time, shortfall

OF = 'resource="$resource"'
INSTANCE = Variable(
    "resource",
    "Instance",
    'label_values(amp_instance_info{project=~"$project"}, resource)',
    several=False,
)

DASHBOARD = Dashboard(
    "amp-nova-instance",
    "amp-nova / Instance",
    "Does this instance get what it booked, and if not, why?",
    (PROJECTS, INSTANCE),
    (
        Row(
            "Booked and delivered",
            (
                Panel(
                    "What it is",
                    "Name and flavor.",
                    "none",
                    (Query(f"amp_instance_info{{{OF}}}", "{{name}} ({{flavor}})"),),
                    "stat",
                    12,
                ),
                Panel(
                    "Minutes kept",
                    "Share of the minutes with demand that delivered at least 95 % of the booking, "
                    "in the time range.",
                    "percentunit",
                    (
                        Query(
                            "1 - sum(increase(amp_instance_delivered_ratio_bucket"
                            f'{{{OF}, le="0.95"}}[$__range])) / '
                            "sum(increase(amp_instance_delivered_ratio_count"
                            f"{{{OF}}}[$__range]))",
                            "kept",
                        ),
                    ),
                    "stat",
                    12,
                ),
                Panel(
                    "Reference cores",
                    "Booked and delivered, for each vCPU. A vCPU that wants less gets less.",
                    REFCORES,
                    (
                        Query(
                            f"sum by (vcpu) (amp_vcpu_booked_refcores{{{OF}}})",
                            "vCPU {{vcpu}} booked",
                            dashed=True,
                        ),
                        Query(
                            f"sum by (vcpu) (amp_vcpu_delivered_refcores{{{OF}}})",
                            "vCPU {{vcpu}} delivered",
                        ),
                    ),
                ),
                Panel(
                    "Instructions per second",
                    "Delivered (if counted) and booked instructions per second, for each vCPU.",
                    "short",
                    (
                        Query(
                            f"sum by (vcpu) (amp_vcpu_booked_ips{{{OF}}})",
                            "vCPU {{vcpu}} booked",
                            dashed=True,
                        ),
                        Query(
                            f"sum by (vcpu) (amp_vcpu_delivered_ips{{{OF}}})",
                            "vCPU {{vcpu}} delivered",
                        ),
                    ),
                ),
                Panel(
                    "Delivered over booked, while in demand",
                    "1 means that the booking is delivered in full.",
                    "short",
                    (Query(f"amp_vcpu_delivered_ratio{{{OF}}}", "vCPU {{vcpu}}"),),
                ),
                shortfall(OF),
            ),
        ),
        Row(
            "Why",
            (
                core_time(
                    OF, "Core type over time", "How many pCPUs of each core type it keeps busy."
                ),
                Panel(
                    "Limit in force",
                    "CPU quota of each vCPU, as a share of one pCPU.",
                    "percentunit",
                    (Query(f"amp_vcpu_quota_cores{{{OF}}}", "vCPU {{vcpu}}"),),
                ),
                Panel(
                    "Speedup of its work",
                    "Estimated speed on the fastest core type over the slowest, with its source.",
                    "short",
                    (Query(f"amp_vcpu_speedup_ratio{{{OF}}}", "vCPU {{vcpu}} ({{source}})"),),
                ),
                Panel(
                    "Error of the speedup",
                    "Standard error of the estimate.",
                    "short",
                    (Query(f"amp_vcpu_speedup_error_ratio{{{OF}}}", "vCPU {{vcpu}}"),),
                ),
            ),
        ),
        Row(
            "Chargeback",
            (
                Panel(
                    "CPU time",
                    "CPU seconds in the time range, on any core type.",
                    "s",
                    (
                        Query(
                            f"sum(increase(amp_vcpu_cpu_seconds_total{{{OF}}}[$__range]))",
                            "CPU time",
                        ),
                    ),
                    "stat",
                ),
                Panel(
                    "Reference CPU time",
                    "CPU seconds times the coefficient, in the time range.",
                    "s",
                    (
                        Query(
                            f"sum(increase(amp_vcpu_reference_cpu_seconds_total{{{OF}}}[$__range]))",
                            "reference CPU time",
                        ),
                    ),
                    "stat",
                ),
            ),
        ),
    ),
)
