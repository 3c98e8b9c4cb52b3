# SPDX-License-Identifier: Apache-2.0
"""What keeps a host from selling or keeping bookings, in sentences: for page, status and check."""

from collections.abc import Iterable
from typing import NamedTuple

from amp_nova.agent.cycle import Cycle
from amp_nova.agent.threads import HelperThread

NO_REPORTS = (
    "schedulers get no reports from this host and, by default, place no booking on it: set"
    " [reports] transport_url"
)

NO_SCHEDULER = (
    "no scheduler answers on the bus of [reports] transport_url: enable AmpCapacityFilter, and give"
    " [amp_scheduler] the same transport_url; after a restart, a scheduler answers from its first"
    " request on"
)

SANDBOX = (
    "run without QEMU's sandbox: one that takes its QEMU over can change its own affinity and"
    " priority; set seccomp_sandbox = 1 in qemu.conf, and restart them"
)


class HostWarning(NamedTuple):
    """``about``: the kind, as in metrics; ``sentence``: without a full stop."""

    about: str
    sentence: str


def host_warnings(
    cycle: Cycle, threads: Iterable[HelperThread], *, reports: bool
) -> tuple[HostWarning, ...]:
    """What an operator has to know about the whole host; ``reports``: whether any are sent."""
    found = []
    if cycle.outcome.observing:
        found.append(HostWarning("observing", "bookings are only observed: [agent] mode = observe"))
    if not reports:
        found.append(HostWarning("no_reports", NO_REPORTS))
    failing = {thread.name: thread.failure for thread in threads if thread.failure}
    if why := failing.get("reports"):
        found.append(
            HostWarning("reports_fail", f"schedulers get no reports from this host: {why}")
        )
    elif "schedulers" in failing:
        found.append(HostWarning("no_scheduler", NO_SCHEDULER))
    free = sorted(d.domain.name for d in cycle.observation.domains if not d.sandboxed)
    if free:
        found.append(HostWarning("no_sandbox", f"{len(free)} guests, such as {free[0]}, {SANDBOX}"))
    unknown = {
        d.domain.flavor: d.domain.name
        for d in cycle.observation.domains
        if d.domain.booking_unknown
    }
    found += [
        HostWarning(
            "booking_unknown",
            f"flavor {flavor}: this release of Nova does not tell what it books, so its servers,"
            f" such as {name}, are best effort: write its keys into [agent] booking",
        )
        for flavor, name in sorted(unknown.items())
    ]
    return (*found, *(HostWarning("topology", text) for text in cycle.topology.warnings))
