# SPDX-License-Identifier: Apache-2.0
"""One host: does it keep its bookings, and does its agent work?"""

from panels import (
    COUNT,
    HOST,
    NONE_WANTED,
    PER_MINUTE,
    REFCORES,
    SHARE,
    TIMES,
    YES_NO,
    Dashboard,
    Panel,
    Query,
    Row,
    at_least,
    at_most,
    core_time,
    figure,
    shortfall,
    unenforced,
)
from panels import ON_HOST as ON

RATE = "[$__rate_interval]"


def per_minute(metric: str, by: str) -> str:
    """Events of a counter per minute."""
    return f"60 * sum by ({by}) (rate({metric}{{{ON}}}{RATE}))"


VERDICT = (
    figure(
        "Minutes kept, last hour",
        "Share of the minutes with demand that delivered at least 95 % of the booking. There is no "
        "value while nothing with a booking wants CPU time.",
        SHARE,
        f"1 - host:amp_minutes_missed:ratio1h{{{ON}}}",
        "kept",
        6,
        steps=at_least(0.99),
    ),
    unenforced(ON),
    figure(
        "Since the last control cycle",
        "If it is more than a minute, the agent is stuck.",
        "s",
        f"time() - amp_cycle_last_success_timestamp_seconds{{{ON}}}",
        "age",
        4,
        steps=at_most(15, 60),
    ),
    figure(
        "libvirt answers",
        "Whether the last call was answered.",
        COUNT,
        f"amp_hypervisor_up{{{ON}}}",
        "libvirt",
        4,
        steps=at_least(1),
        states=YES_NO,
    ),
    figure(
        "A guard runs",
        "It applies the safe state if the agent's lease expires.",
        COUNT,
        f"amp_guard_up{{{ON}}}",
        "guard",
        4,
        steps=at_least(1),
        states=YES_NO,
    ),
)
BOOKINGS = (
    Panel(
        "Booked and delivered",
        "Reference cores. Delivered is below booked if instances want less than they book.",
        REFCORES,
        (
            Query(f"amp_host_booked_refcores{{{ON}}}", "booked", dashed=True),
            Query(f'amp_host_delivered_refcores{{{ON}, kind="booked"}}', "delivered"),
            Query(f'amp_host_delivered_refcores{{{ON}, kind="best_effort"}}', "best effort"),
        ),
    ),
    shortfall("amp_host_shortfall_refcore_seconds_total", ON),
    Panel(
        "Instances with the greatest shortfall",
        "Reference cores that were booked and wanted, but not delivered. Each series links to its "
        "instance.",
        REFCORES,
        (
            Query(
                "topk(10, sum by (domain, resource) "
                f"(rate(amp_instance_shortfall_refcore_seconds_total{{{ON}}}{RATE})))",
                "{{domain}}",
            ),
        ),
        link=("amp-nova-instance", "resource"),
    ),
    Panel(
        "Headroom by core type",
        "Reference cores that can still be booked.",
        REFCORES,
        (Query(f"amp_host_headroom_refcores{{{ON}}}", "{{core_type}}"),),
        "stacked",
    ),
)
CORES = (
    core_time(
        "amp_host_cpu_seconds_total",
        ON,
        "CPU time by core type",
        "How many pCPUs of each core type vCPUs keep busy.",
    ),
    Panel(
        "Moves between core types, per minute",
        "Moves of vCPUs. After each move, a guest's caches are cold.",
        PER_MINUTE,
        (Query(per_minute("amp_migrations_total", "from, to"), "{{from}} to {{to}}"),),
    ),
    Panel(
        "Coefficients",
        "Speed of each core type over the reference core. The dashed lines are the limits of the "
        "calibration's confidence interval.",
        TIMES,
        (
            Query(f"amp_core_type_coefficient_ratio{{{ON}}}", "{{core_type}} ({{source}})"),
            Query(
                f"amp_core_type_coefficient_ratio{{{ON}}} + on (instance, job, core_type) "
                f"amp_core_type_coefficient_error_ratio{{{ON}}}",
                "{{core_type}} high",
                dashed=True,
            ),
            Query(
                f"amp_core_type_coefficient_ratio{{{ON}}} - on (instance, job, core_type) "
                f"amp_core_type_coefficient_error_ratio{{{ON}}}",
                "{{core_type}} low",
                dashed=True,
            ),
        ),
    ),
    Panel(
        "Coefficient drift",
        "Measured speedup of guests over the speedup by the coefficients; 1 is no drift.",
        TIMES,
        (Query(f"amp_coefficient_drift_ratio{{{ON}}}", "{{core_type}}"),),
    ),
    Panel(
        "Age of the calibration",
        "Calibrate again after changes of firmware, microcode or cooling.",
        "s",
        (Query(f"time() - amp_calibration_timestamp_seconds{{{ON}}}", "age"),),
        "stat",
        steps=at_most(90 * 86400, 180 * 86400),
    ),
    Panel(
        "Counters",
        "What counts the instructions of vCPUs.",
        COUNT,
        (Query(f"amp_counters_info{{{ON}}}", "{{source}}"),),
        "name",
    ),
)
AGENT = (
    Panel(
        "Version",
        "Version of the agent.",
        COUNT,
        (Query(f"amp_build_info{{{ON}}}", "{{version}}"),),
        "name",
    ),
    Panel(
        "Warnings about the host",
        "'amp-nova status' on the host prints the warnings.",
        COUNT,
        (Query(f"sum(amp_host_warnings{{{ON}}}) or vector(0)", "warnings"),),
        "stat",
        steps=at_most(1, 1000),
    ),
    Panel(
        "Cost: CPU time of the agent",
        "Share of one pCPU.",
        SHARE,
        (Query(f"rate(process_cpu_seconds_total{{{ON}}}{RATE})", "CPU"),),
    ),
    Panel(
        "Cost: memory of the agent",
        "Resident memory.",
        "bytes",
        (Query(f"process_resident_memory_bytes{{{ON}}}", "resident"),),
    ),
    Panel(
        "Duration of control cycles by stage",
        "Mean over cycles.",
        "s",
        (
            Query(
                f"rate(amp_cycle_duration_seconds_sum{{{ON}}}{RATE}) "
                f"/ rate(amp_cycle_duration_seconds_count{{{ON}}}{RATE})",
                "{{stage}}",
            ),
        ),
        "stacked",
    ),
    Panel(
        "Lateness of control cycles",
        "Delay of the last periodic cycle. It is large if the agent gets too little CPU time.",
        "s",
        (Query(f"amp_cycle_lateness_seconds{{{ON}}}", "late"),),
    ),
    Panel(
        "Writes, failures and foreign changes, per minute",
        "Limits and affinities that the agent wrote, could not write, or found changed.",
        PER_MINUTE,
        (
            Query(per_minute("amp_writes_total", "instance"), "written"),
            Query(per_minute("amp_actuation_failures_total", "reason"), "failed: {{reason}}"),
            Query(per_minute("amp_enforcement_drift_total", "cause"), "foreign: {{cause}}"),
        ),
    ),
    Panel(
        "Lease",
        "What was left of the lease when a cycle last renewed it. If it runs out, the guard "
        "applies the safe state.",
        "s",
        (Query(f"amp_lease_remaining_seconds{{{ON}}}", "left"),),
    ),
    Panel(
        "Expired leases",
        "How often the guard applied the safe state in the time range.",
        COUNT,
        (Query(f"increase(amp_lease_expirations_total{{{ON}}}[$__range])", "expired"),),
        steps=NONE_WANTED,
    ),
    Panel(
        "Since helper threads last did their work",
        "Work is a report that was sent, Placement being up to date, or an exporter that answers.",
        "s",
        (
            Query(
                f"time() - amp_thread_last_success_timestamp_seconds{{{ON}}}",
                "{{thread}}",
            ),
        ),
    ),
    Panel(
        "Restarts of helper threads, per minute",
        "Restarts of threads that ended.",
        PER_MINUTE,
        (Query(per_minute("amp_thread_restarts_total", "thread"), "{{thread}}"),),
    ),
    Panel(
        "Calls to libvirt, per minute",
        "There are few calls while nothing changes.",
        PER_MINUTE,
        (Query(per_minute("amp_libvirt_calls_total", "instance"), "calls"),),
    ),
)

DASHBOARD = Dashboard(
    "amp-nova-host",
    "amp-nova / Host",
    "Does this host keep its bookings, and does its agent work?",
    (HOST,),
    (
        Row("Does it work?", VERDICT),
        Row("Bookings", BOOKINGS),
        Row("Cores", CORES),
        Row("The agent", AGENT),
    ),
)
