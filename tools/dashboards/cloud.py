# SPDX-License-Identifier: Apache-2.0
"""All hosts: are bookings kept, and where is capacity left?"""

from panels import (
    COUNT,
    HOSTS,
    NONE_WANTED,
    OF_JOB,
    ON_HOSTS,
    PCPUS,
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
    shortfall,
    unenforced,
)

OF = f'{ON_HOSTS}, project=~"$project"'
VERDICT = (
    figure(
        "Service level, 30 days",
        "Share of the minutes with demand that delivered at least 95 % of the booking. "
        "The objective is 99 %.",
        SHARE,
        f"cloud:amp_minutes_kept:ratio30d{{{OF_JOB}}}",
        "kept",
        6,
        steps=at_least(0.99),
    ),
    figure(
        "Hosts below the service level",
        "In the last hour.",
        COUNT,
        f"count(host:amp_minutes_missed:ratio1h{{{ON_HOSTS}}} > 0.01) or vector(0)",
        "hosts",
        6,
        steps=NONE_WANTED,
    ),
    unenforced(ON_HOSTS),
    figure(
        "Unattended hosts",
        "Their agent cannot be scraped, completes no control cycle or has no libvirt.",
        COUNT,
        f"cloud:amp_hosts_unattended:count{{{OF_JOB}}} or vector(0)",
        "hosts",
        6,
        steps=NONE_WANTED,
    ),
)
BOOKINGS = (
    Panel(
        "Booked and delivered",
        "Delivered is below booked if instances want less than they book; what they wanted and did "
        "not get is the shortfall.",
        REFCORES,
        (
            Query(f"sum(amp_host_booked_refcores{{{ON_HOSTS}}})", "booked", dashed=True),
            Query(
                f'sum(amp_host_delivered_refcores{{{ON_HOSTS}, kind="booked"}})',
                "delivered",
            ),
        ),
    ),
    shortfall("amp_host_shortfall_refcore_seconds_total", ON_HOSTS),
    Panel(
        "Hosts that miss the most minutes",
        "Share of the minutes with demand, in the last hour, that delivered less than 95 % of the "
        "booking. 1 % is allowed; at 14.4 %, somebody is paged. Each series links to its host.",
        SHARE,
        (Query(f"topk(10, host:amp_minutes_missed:ratio1h{{{ON_HOSTS}}})", "{{instance}}"),),
        link=("amp-nova-host", "instance"),
        steps=at_most(0.01, 0.144),
    ),
    Panel(
        "Bookings not enforced",
        "vCPUs by reason. 'amp-nova explain' on the host gives details.",
        COUNT,
        (
            Query(
                f"sum by (reason) (amp_host_unenforced_vcpus{{{ON_HOSTS}}}) "
                'or label_replace(vector(0), "reason", "none", "", "")',
                "{{reason}}",
            ),
        ),
        "stacked",
    ),
)
CAPACITY = (
    figure(
        "Booked",
        "Without bookings in instructions per second.",
        REFCORES,
        f"sum(amp_host_booked_refcores{{{ON_HOSTS}}})",
        "booked",
        8,
    ),
    figure(
        "Can be booked",
        "On all core types.",
        REFCORES,
        f"sum(amp_host_headroom_refcores{{{ON_HOSTS}}})",
        "headroom",
        8,
    ),
    figure("Hosts", "Agents that are scraped.", COUNT, f"count(up{{{ON_HOSTS}}})", "hosts", 8),
    Panel(
        "Headroom by core type",
        "Reference cores that can still be booked.",
        REFCORES,
        (Query(f"sum by (core_type) (amp_host_headroom_refcores{{{ON_HOSTS}}})", "{{core_type}}"),),
        "stacked",
    ),
    Panel(
        "Hosts with the least headroom",
        "Reference cores that can still be booked, on all core types of a host.",
        REFCORES,
        (
            Query(
                f"bottomk(10, sum by (job, instance) (amp_host_headroom_refcores{{{ON_HOSTS}}}))",
                "{{instance}}",
            ),
        ),
        link=("amp-nova-host", "instance"),
    ),
)


def by_project(metric: str) -> tuple[Query, ...]:
    """The rate of a counter of instances."""
    rate = f"rate({metric}{{{OF}}}[$__rate_interval])"
    return (Query(f"sum by (project) ({rate})", "{{project}}"),)


CHARGEBACK = (
    Panel(
        "CPU time by project",
        "CPU seconds per second. Time counts the same on every core type.",
        PCPUS,
        by_project("amp_instance_cpu_seconds_total"),
        "stacked",
    ),
    Panel(
        "Reference CPU time by project",
        "CPU seconds times the coefficient, per second. The same work counts the same on every "
        "host.",
        REFCORES,
        by_project("amp_instance_reference_cpu_seconds_total"),
        "stacked",
    ),
)

DASHBOARD = Dashboard(
    "amp-nova-cloud",
    "amp-nova / Cloud",
    "Are bookings kept, and where is capacity left?",
    (HOSTS, PROJECTS),
    (
        Row("Are bookings kept?", VERDICT),
        Row("Bookings", BOOKINGS),
        Row("Capacity", CAPACITY),
        Row("Chargeback", CHARGEBACK),
    ),
)
