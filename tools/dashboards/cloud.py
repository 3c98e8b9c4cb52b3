"""All hosts: are bookings kept, and where is capacity left?"""

from panels import HOSTS, PROJECTS, REFCORES, Dashboard, Panel, Query, Row, shortfall

ON = 'instance=~"$host"'
OF = f'{ON}, project=~"$project"'

DASHBOARD = Dashboard(
    "amp-nova-cloud",
    "amp-nova / Cloud",
    "Are bookings kept, and where is capacity left?",
    (HOSTS, PROJECTS),
    (
        Row(
            "At a glance",
            (
                Panel(
                    "Service level, 30 days",
                    "Share of the minutes with demand that delivered at least 95 % of the booking. "
                    "The objective is 99 %.",
                    "percentunit",
                    (Query("min(cloud:amp_minutes_kept:ratio30d)", "kept"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Booked",
                    "Booked reference cores, without bookings in instructions per second.",
                    REFCORES,
                    (Query(f"sum(host:amp_booked_refcores:sum{{{ON}}})", "refcores"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Can be booked",
                    "Reference cores that can still be booked, on all core types.",
                    REFCORES,
                    (Query(f"sum(amp_host_headroom_refcores{{{ON}}})", "refcores"),),
                    "stat",
                    6,
                ),
                Panel(
                    "Hosts",
                    "Agents that answer scrapes, and agents that do not.",
                    "none",
                    (
                        Query(f'sum(up{{job="amp-nova", {ON}}})', "up"),
                        Query(f'count(up{{job="amp-nova", {ON}}} == 0) or vector(0)', "down"),
                    ),
                    "stat",
                    6,
                ),
            ),
        ),
        Row(
            "Bookings",
            (
                Panel(
                    "Booked and delivered",
                    "Reference cores. Delivered is below booked if instances want less than they "
                    "book; what they wanted and did not get is the shortfall.",
                    REFCORES,
                    (
                        Query(f"sum(host:amp_booked_refcores:sum{{{ON}}})", "booked", dashed=True),
                        Query(f"sum(host:amp_delivered_refcores:sum{{{ON}}})", "delivered"),
                    ),
                ),
                shortfall(OF),
                Panel(
                    "Hosts that miss the most minutes",
                    "Share of the minutes with demand, in the last hour, that delivered less than "
                    "95 % of the booking. Each series links to its host.",
                    "percentunit",
                    (Query(f"topk(10, host:amp_minutes_missed:ratio1h{{{ON}}})", "{{instance}}"),),
                    link=("amp-nova-host", "instance"),
                ),
                Panel(
                    "Bookings not enforced",
                    "vCPUs by reason. 'amp-nova explain' on the host gives details.",
                    "none",
                    (
                        Query(
                            f"sum by (reason) (amp_vcpu_unenforced_info{{{OF}}}) "
                            'or label_replace(vector(0), "reason", "none", "", "")',
                            "{{reason}}",
                        ),
                    ),
                    "stacked",
                ),
            ),
        ),
        Row(
            "Capacity",
            (
                Panel(
                    "Headroom by core type",
                    "Reference cores that can still be booked.",
                    REFCORES,
                    (
                        Query(
                            f"sum by (core_type) (amp_host_headroom_refcores{{{ON}}})",
                            "{{core_type}}",
                        ),
                    ),
                    "stacked",
                ),
                Panel(
                    "Hosts with the least headroom",
                    "Reference cores that can still be booked, on all core types of a host.",
                    REFCORES,
                    (
                        Query(
                            f"bottomk(10, sum by (instance) (amp_host_headroom_refcores{{{ON}}}))",
                            "{{instance}}",
                        ),
                    ),
                    link=("amp-nova-host", "instance"),
                ),
            ),
        ),
        Row(
            "Chargeback",
            (
                Panel(
                    "CPU time by project",
                    "CPU seconds per second. Time counts the same on every core type.",
                    "short",
                    (
                        Query(
                            "sum by (project) (rate(amp_vcpu_cpu_seconds_total"
                            f"{{{OF}}}[$__rate_interval]))",
                            "{{project}}",
                        ),
                    ),
                    "stacked",
                ),
                Panel(
                    "Reference CPU time by project",
                    "CPU seconds times the coefficient, per second. The same work counts the same "
                    "on every host.",
                    "short",
                    (
                        Query(
                            "sum by (project) (rate(amp_vcpu_reference_cpu_seconds_total"
                            f"{{{OF}}}[$__rate_interval]))",
                            "{{project}}",
                        ),
                    ),
                    "stacked",
                ),
            ),
        ),
    ),
)
