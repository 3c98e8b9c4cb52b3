"""Best effort: how does the policy divide the capacity that bookings leave?"""

from panels import HOST, Dashboard, Panel, Query, Row

ON = 'instance="$host"'
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
                    "none",
                    (Query(f"amp_policy_info{{{ON}}}", "{{policy}}"),),
                    "stat",
                    8,
                ),
                Panel(
                    "Unfairness",
                    "Greatest over least slowdown; 1 is fair.",
                    "short",
                    (Query(f"amp_host_unfairness_ratio{{{ON}}}", "unfairness"),),
                    "stat",
                    8,
                ),
                Panel(
                    "Instances in the idle class",
                    "They use the CPU time that bookings leave.",
                    "none",
                    (Query(f"sum(amp_instance_idle_class{{{ON}}})", "instances"),),
                    "stat",
                    8,
                ),
                Panel(
                    "Slowdown",
                    "Speed alone on this host over the recent speed. Each series links to its "
                    "instance.",
                    "short",
                    (Query(f"amp_instance_slowdown_ratio{{{ON}}}", "{{domain}}"),),
                    link=("amp-nova-instance", "resource"),
                ),
                Panel(
                    "Unfairness over time",
                    "Greatest over least slowdown.",
                    "short",
                    (Query(f"amp_host_unfairness_ratio{{{ON}}}", "unfairness"),),
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    "Members of the idle class",
                    "1 for every instance in the idle class.",
                    "none",
                    (Query(f"amp_instance_idle_class{{{ON}}} > 0", "{{domain}}"),),
                    "stacked",
                    link=("amp-nova-instance", "resource"),
                ),
                Panel(
                    "CPU time of the idle class by core type",
                    "How many pCPUs of each core type best effort keeps busy.",
                    "short",
                    (
                        Query(
                            "sum by (core_type) (rate(amp_vcpu_cpu_seconds_total"
                            f"{{{ON}}}{RATE}) * on (instance, job, domain, resource, project) "
                            f"group_left () amp_instance_idle_class{{{ON}}})",
                            "{{core_type}}",
                        ),
                    ),
                    "stacked",
                ),
                Panel(
                    "Moves between core types, per minute",
                    "Moves of all vCPUs. Best-effort vCPUs move most often.",
                    "short",
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
                    "none",
                    (Query(f"increase(amp_plans_rejected_total{{{ON}}}{RATE})", "rejected"),),
                ),
            ),
        ),
        Row(
            "What the policy knows",
            (
                Panel(
                    "Fast-core efficiency",
                    "Instructions per cycle times utilization; only the order is meaningful.",
                    "short",
                    (Query(f"amp_vcpu_efficiency_ratio{{{ON}}}", "{{domain}}/{{vcpu}}"),),
                ),
                Panel(
                    "Speedup on fast cores",
                    "Estimated speed on the fastest core type over the slowest, for each vCPU.",
                    "short",
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
