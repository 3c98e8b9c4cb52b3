# SPDX-License-Identifier: Apache-2.0
"""Best effort: how does the policy divide the capacity that bookings leave?"""

from panels import (
    COUNT,
    HOST,
    NONE_WANTED,
    PCPUS,
    PER_MINUTE,
    TIMES,
    Dashboard,
    Panel,
    Query,
    Row,
    at_most,
    figure,
)
from panels import ON_HOST as ON

RATE = "[$__rate_interval]"

DASHBOARD = Dashboard(
    "amp-nova-policy",
    "amp-nova / Policy",
    "How does the policy divide the capacity that bookings leave among best effort?",
    (HOST,),
    (
        Row(
            "Fairness",
            (
                Panel(
                    "Policy",
                    "The value of [agent] policy on the host.",
                    COUNT,
                    (Query(f"amp_policy_info{{{ON}}}", "{{policy}}"),),
                    "name",
                    12,
                ),
                figure(
                    "Unfairness",
                    "Greatest over least slowdown; 1 is fair.",
                    TIMES,
                    f"amp_host_unfairness_ratio{{{ON}}}",
                    "unfairness",
                    12,
                    steps=at_most(1.5, 2),
                ),
                Panel(
                    "Slowdown",
                    "Speed alone on this host over the recent speed. Each series links to its "
                    "instance.",
                    TIMES,
                    (Query(f"amp_instance_slowdown_ratio{{{ON}}}", "{{domain}}"),),
                    link=("amp-nova-instance", "resource"),
                ),
                Panel(
                    "Unfairness over time",
                    "Greatest over least slowdown.",
                    TIMES,
                    (Query(f"amp_host_unfairness_ratio{{{ON}}}", "unfairness"),),
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    "CPU time of best effort by core type",
                    "How many pCPUs of each core type best effort keeps busy.",
                    PCPUS,
                    (
                        Query(
                            "sum by (core_type) (rate(amp_instance_cpu_seconds_total"
                            f"{{{ON}}}{RATE}) unless on (instance, resource) "
                            f"(amp_instance_booked_refcores{{{ON}}} "
                            f"or amp_instance_booked_ips{{{ON}}}))",
                            "{{core_type}}",
                        ),
                    ),
                    "stacked",
                ),
                Panel(
                    "Moves between core types, per minute",
                    "Moves of all vCPUs. Best-effort vCPUs move most often.",
                    PER_MINUTE,
                    (
                        Query(
                            f"60 * sum by (from, to) (rate(amp_migrations_total{{{ON}}}{RATE}))",
                            "{{from}} to {{to}}",
                        ),
                    ),
                ),
                Panel(
                    "Invalid plans",
                    "Plans of the policy that were not applied.",
                    COUNT,
                    (Query(f"increase(amp_plans_rejected_total{{{ON}}}{RATE})", "rejected"),),
                    steps=NONE_WANTED,
                ),
            ),
        ),
        Row(
            "What the policy knows (with [exporter] detail = vcpu)",
            (
                Panel(
                    "Fast-core efficiency",
                    "Instructions per cycle times utilization; only the order is meaningful.",
                    COUNT,
                    (Query(f"amp_vcpu_efficiency_ratio{{{ON}}}", "{{domain}}/{{vcpu}}"),),
                ),
                Panel(
                    "Speedup on fast cores",
                    "Estimated speed on the fastest core type over the slowest, for each vCPU.",
                    TIMES,
                    (
                        Query(
                            f"amp_vcpu_speedup_ratio{{{ON}}}",
                            "{{domain}}/{{vcpu}} ({{source}})",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
