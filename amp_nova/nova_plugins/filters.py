# SPDX-License-Identifier: Apache-2.0
"""``AmpCapacityFilter``: a host passes if the booking can be packed beside its other bookings.

When Nova turns to a host that passed, its capacity is reserved (``nova_plugins.decisions``).
"""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs
from nova import objects
from nova.scheduler import filters, utils
from nova.scheduler.host_manager import HostState
from nova.virt import hardware

from amp_nova.flavor.extra_specs import DEDICATED
from amp_nova.flavor.placement_resources import claims, provider_uuid
from amp_nova.model import cpulist
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.decisions import Decisions
from amp_nova.nova_plugins.host_entry import Query
from amp_nova.nova_plugins.metrics import Outcome
from amp_nova.nova_plugins.nova_records import read_booking
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.scheduling import demands
from amp_nova.scheduling.host_fit import HostFit
from amp_nova.wire.host_report import ReportedInstance

LOG = logging.getLogger(__name__)
HOSTS_LOGGED_MAX = 5
NO_REPORT = (
    "its agent has not reported",
    "its agent cannot reach the hypervisor",
    "its agent's last report is too old",
    "this scheduler does not know yet what Nova has under way there",
)


class AmpCapacityFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Passes hosts that have the capacity that the instance books."""

    def __init__(self) -> None:
        self._server = report_server.shared()
        self._states = self._server.states
        _warn_unless_last(type(self).__name__)

    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Iterator[Any]:
        """The hosts that pass; the booking is read once for all of them."""
        self._server.start()
        flavor = spec_obj.flavor
        booking, errors = read_booking(flavor.extra_specs, flavor.vcpus)
        topology = spec_obj.numa_topology  # real-time and mixed guests have dedicated CPUs, too
        dedicated = topology is not None and any(cell.pcpuset for cell in topology.cells)
        if booking is not None and booking.booked and dedicated:
            # The flavor's own keys were examined; only now is the image known as well.
            booking, errors = None, f"its image asks for dedicated CPUs, but {DEDICATED}"
        if booking is None:
            self._server.metrics.requests["invalid"] += 1
            LOG.warning(
                "instance %s: flavor %s is not valid, so no host passes: %s",
                spec_obj.instance_uuid,
                flavor.name,
                errors,
            )
            return
        if not (booking.booked or booking.core_type):
            yield from filter_obj_list
            return
        hosts, request = list(filter_obj_list), demands.request_of(booking)
        if utils.request_is_rebuild(spec_obj):
            # Any tenant can give the hint that this reads, and Nova claims nothing then: only what
            # the instance has on its host passes unseen.
            hosts = [host for host in hosts if spec_obj.instance_uuid in host.instances]
            entries = (self._states.entry(host.nodename) for host in hosts)
            if all(e is None or e.has_booking(spec_obj.instance_uuid, request) for e in entries):
                yield from hosts
                return
        self._server.wait_until_ready(hosts)
        yield from self._filtered(hosts, spec_obj, request)

    def _filtered(
        self, hosts: list[Any], spec_obj: Any, request: ReportedInstance
    ) -> Iterator[Any]:
        query, oldest_s = Query(spec_obj.instance_uuid, request), self._states.oldest_s()
        attempt = _Attempt(self._server.decisions, spec_obj, query)
        fits = [self._fit(query, host, oldest_s) for host in hosts]
        nowhere = bool(hosts) and all(fit is not None and fit.refused for fit in fits)
        if nowhere and self._server.refresh():
            # Something that was pending may have ended a moment ago.
            fits = [self._fit(query, host, oldest_s) for host in hosts]
        refused: list[tuple[str, str]] = []
        for host, fit in zip(hosts, fits, strict=True):
            if fit is not None:
                if fit.refused is not None:
                    refused.append((host.nodename, fit.refused))
                    continue
                if request.vcpus:
                    host.allocation_candidates = checked = _Candidates(host.allocation_candidates)
                    checked.reserve = functools.partial(attempt.reserve, host)
            host.consume_from_request = functools.partial(attempt.chose, host)
            yield host
        if refused:
            _log_refused(refused, spec_obj)
        outcome: Outcome = "passed"
        if refused and len(refused) == len(hosts):
            unreported = sum(why in NO_REPORT for _, why in refused)
            outcome = "no_report" if 2 * unreported > len(refused) else "capacity"
        self._server.metrics.requests[outcome] += 1

    def _fit(self, query: Query, host: Any, oldest_s: float) -> HostFit | None:
        """Whether a request fits a host, by its last report or as ``stale_report`` says.

        ``None`` if the host passes without a usable report. It also passes if time is up, or if the
        capacity is claimed at this moment and may be given up: when Nova turns to it, it is seen.
        """
        entry = self._states.entry(host.nodename)
        if entry is None or not entry.usable(oldest_s):
            stale_report = CONF.amp_scheduler.stale_report
            if stale_report == "ignore":
                return None
            if entry is None:
                return HostFit(refused=NO_REPORT[0])
            if stale_report != "last":
                return HostFit(refused=NO_REPORT[2 if entry.report.healthy else 1])
        if not self._states.knows(host):
            return HostFit(refused=NO_REPORT[3])
        fit = query.fit(entry)
        if fit is None or (fit.refused is not None and query.may_fit(entry)):
            return HostFit()
        return fit


class _Attempt:
    """One instance that Nova places: at most one host is reserved for it at a time."""

    def __init__(self, decisions: Decisions, spec_obj: Any, query: Query) -> None:
        self._decisions = decisions
        self._spec = spec_obj
        self._query = query
        self._reserved: tuple[str, Query] | None = None

    def reserve(self, host: Any) -> bool:
        """Reserve capacity on the host that Nova turns to, and give up that of the last one.

        Nova also turns to alternates, on which it would retry a failed build without asking again.
        There are none: their capacity would be refused to others while it is not used.
        """
        if getattr(self._spec, "amp_chosen", None) == self._query.resource:
            return False
        if self._reserved is not None:
            self._decisions.release(self._reserved[0], self._query.resource)
            self._reserved = None
        pin = functools.partial(_pinned, self._query.request, host, self._spec)
        query = self._query.turned(pin if self._spec.numa_topology else None)
        if query is None:
            why = "no NUMA cells there suit it, or there was no time to examine them"
            _log_refused([(host.nodename, why)], self._spec)
            return False
        fit = self._decisions.reserve(host.nodename, query)
        if fit.refused is not None:
            _log_refused([(host.nodename, fit.refused)], self._spec)
            return False
        self._reserved = host.nodename, query
        if fit.core_types and claims(self._spec.flavor.extra_specs):
            # Nova claims the first one in Placement.
            provider = provider_uuid(host.nodename, fit.core_types[0])
            host.allocation_candidates.sort(key=lambda each: provider not in each["allocations"])
        return True

    def chose(self, host: Any, spec_obj: Any) -> None:
        """Nova chose this host: count the instance there for later requests."""
        HostState.consume_from_request(host, spec_obj)
        spec_obj.amp_chosen = self._query.resource
        query = self._reserved[1] if self._reserved is not None else self._query
        self._decisions.decided(host.nodename, query.resource, query.request)


def _warn_unless_last(name: str) -> None:
    """Log a warning if a later filter replaces ``_Candidates`` by a list that reserves nothing."""
    enabled = list(CONF.filter_scheduler.enabled_filters)
    later = enabled[enabled.index(name) + 1 :] if name in enabled else []
    replacing = {each.__name__ for each in filters.CandidateFilterMixin.__subclasses__()}
    if discarding := [each for each in later if each in replacing]:
        LOG.warning(
            "concurrent requests may over-book hosts, because %s in [filter_scheduler] "
            "enabled_filters discards the reservations of %s: move %s to the end of the list",
            " and ".join(discarding),
            name,
            name,
        )


class _Candidates(list[Any]):
    """A host's allocation candidates; empty if the capacity has been taken since it was filtered.

    Nova tests them for truth just before it claims one, and skips the host if there are none. That
    is the last moment to keep two concurrent requests off the same capacity; without a Placement
    claim nothing else would. Nova tests those of alternates as well, before it names them.
    """

    __slots__ = ("reserve",)  # there are many: one for each host and request
    reserve: Callable[[], bool]

    def __bool__(self) -> bool:
        return len(self) > 0 and self.reserve()


def _pinned(request: ReportedInstance, host: Any, spec_obj: Any) -> ReportedInstance | None:
    """The request as it is on this host, with the pCPUs of the cells to which Nova will pin it.

    ``None`` if no cells of this host suit the guest. Nova reads flavor and image and puts the
    result into the request; its own function selects the cells. It does so again on the host, and
    may choose others if another guest with a NUMA topology has arrived there meanwhile.
    """
    requests = spec_obj.pci_requests
    placed = hardware.numa_fit_instance_to_host(
        host.numa_topology,
        spec_obj.numa_topology.obj_clone(),  # Nova changes it
        limits=host.limits.get("numa_topology")
        or objects.NUMATopologyLimits(
            cpu_allocation_ratio=host.cpu_allocation_ratio,
            ram_allocation_ratio=host.ram_allocation_ratio,
        ),
        pci_requests=requests.requests if requests else None,
        pci_stats=host.pci_stats,
        provider_mapping=host.allocation_candidates[0]["mappings"],
    )
    if placed is None:
        return None
    pcpus = {cell.id: frozenset(cell.cpuset) for cell in host.numa_topology.cells}
    allowed = {vcpu: pcpus[cell.id] for cell in placed.cells for vcpu in cell.cpuset}
    vcpus = (
        structs.replace(v, cpus_allowed_list=cpulist.show(allowed[v.index])) for v in request.vcpus
    )
    return structs.replace(request, vcpus=tuple(vcpus))


def _log_refused(refused: list[tuple[str, str]], spec_obj: Any) -> None:
    """Log the reasons for some hosts in one line."""
    shown = "; ".join(f"{node}: {why}" for node, why in refused[:HOSTS_LOGGED_MAX])
    more = len(refused) - HOSTS_LOGGED_MAX
    LOG.info(
        "instance %s, flavor %s: %d hosts refused: %s%s",
        spec_obj.instance_uuid,
        spec_obj.flavor.name,
        len(refused),
        shown,
        f"; and {more} more" if more > 0 else "",
    )
