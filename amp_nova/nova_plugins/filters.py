"""``AmpCapacityFilter``: a host passes if the booking can be packed beside its other bookings."""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import structs
from nova import objects
from nova.scheduler import filters, utils
from nova.scheduler.host_manager import HostState
from nova.virt import hardware

from amp_nova.flavor.extra_specs import DEDICATED, NAMESPACE
from amp_nova.flavor.placement_resources import claims, provider_uuid
from amp_nova.model import cpulist
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import Entry, HostStates, cache_key, remember
from amp_nova.nova_plugins.metrics import Outcome
from amp_nova.nova_plugins.nova_records import read_booking
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.scheduling import demands, host_fit
from amp_nova.scheduling.host_fit import HostFit
from amp_nova.wire.host_report import ReportedInstance

LOG = logging.getLogger(__name__)
HOSTS_LOGGED_MAX = 5
REPACKED_HOSTS_MAX = 50
"""Most hosts that are packed anew for a request; further ones whose capacity is fragmented are
refused. Packing takes up to 20 ms, and its result is cached until the host changes."""
NO_REPORT = (
    "its agent has not reported",
    "its agent cannot reach the hypervisor",
    "its agent's last report is too old",
)
_PREFIX = f"{NAMESPACE}:"


class AmpCapacityFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Passes hosts that have the capacity that the instance books."""

    def __init__(self) -> None:
        self._server = report_server.shared()
        self._states = self._server.states
        _warn_unless_last(type(self).__name__)

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Whether one host passes."""
        return any(True for _ in self.filter_all([host_state], spec_obj))

    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Iterator[Any]:
        """The hosts that pass; the booking is read once for all of them."""
        specs = spec_obj.flavor.extra_specs
        if not any(key.startswith(_PREFIX) for key in specs):
            yield from filter_obj_list
            return
        self._server.start()
        booking, errors = read_booking(specs, spec_obj.flavor.vcpus)
        if booking is not None and booking.booked and _dedicated(spec_obj):
            # The flavor's own keys were examined; only now is the image known as well.
            booking, errors = None, f"its image asks for dedicated CPUs, but {DEDICATED}"
        if booking is None:
            self._server.metrics.requests["invalid"] += 1
            LOG.warning(
                "instance %s: flavor %s is not valid, so no host passes: %s",
                spec_obj.instance_uuid,
                spec_obj.flavor.name,
                errors,
            )
            return
        # A rebuild stays on its host with the capacity it has.
        if not (booking.booked or booking.core_type) or utils.request_is_rebuild(spec_obj):
            yield from filter_obj_list
            return
        self._server.wait_for_first(filter_obj_list)
        yield from self._filtered(filter_obj_list, spec_obj, demands.request_of(booking))

    def _filtered(self, hosts: Any, spec_obj: Any, request: ReportedInstance) -> Iterator[Any]:
        claimed = claims(spec_obj.flavor.extra_specs)
        resource, reserve = spec_obj.instance_uuid, self._server.decisions.reserve
        # Nova names alternates for all instances of a request together.
        alternates = spec_obj.num_instances == 1
        pinned = bool(spec_obj.numa_topology and request.vcpus)  # looked up once: it takes long
        query = _FitQuery(self._states, request, resource)
        refused: list[tuple[str, str]] = []
        reasons: Counter[Outcome] = Counter()
        passed = False
        for host in hosts:
            host_request = _on_host(host, spec_obj, request) if pinned else request
            if host_request is None:
                refused.append((host.nodename, "Nova can pin the guest to none of its NUMA cells"))
                reasons["numa"] += 1
                continue
            fit = query.fit(host, host_request)
            if fit is not None:
                if fit.refused is not None:
                    refused.append((host.nodename, fit.refused))
                    reasons["no_report" if fit.refused in NO_REPORT else "capacity"] += 1
                    continue
                if claimed and fit.core_types:
                    _prefer_core_type(host, fit.core_types[0])
                if (candidates := getattr(host, "allocation_candidates", None)) is not None:
                    host.allocation_candidates = checked = _Candidates(candidates)
                    checked.reserve = reserve
                    checked.what = host.nodename, resource, host_request, alternates
            host.consume_from_request = functools.partial(self._consume, host, host_request)
            passed = True
            yield host
        if refused:
            _log_refused(refused, spec_obj)
        outcome = "passed" if passed or not reasons else max(reasons, key=reasons.__getitem__)
        self._server.metrics.requests[outcome] += 1

    def _consume(self, host: Any, request: ReportedInstance, spec_obj: Any) -> None:
        """Nova chose this host: count the instance there for later requests."""
        HostState.consume_from_request(host, spec_obj)
        self._server.decisions.decided(host.nodename, spec_obj.instance_uuid, request)


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

    __slots__ = ("reserve", "what")  # there are many: one for each host and request
    reserve: Callable[[str, str, ReportedInstance, bool], bool]
    what: tuple[str, str, ReportedInstance, bool]

    def __bool__(self) -> bool:
        return len(self) > 0 and self.reserve(*self.what)


class _FitQuery:
    """One request, tried on every host."""

    def __init__(self, states: HostStates, request: ReportedInstance, resource: str) -> None:
        self._states = states
        self._request = request
        self._key = cache_key(request)
        self._quick_fit = host_fit.quick_fit_of(request)
        self._resource = resource
        self._oldest_s = states.oldest_s()
        self._stale_report = CONF.amp_scheduler.stale_report
        self._repacks_left = REPACKED_HOSTS_MAX

    def fit(self, host: Any, request: ReportedInstance) -> HostFit | None:
        """Whether the request fits a host, by its last report or as ``stale_report`` says.

        ``request``: as it is on this host. ``None`` if the host passes without a usable report.
        """
        entry = self._states.entry(host.nodename)
        if entry is not None:
            if entry.pending and not entry.left.issubset(host.instances):
                entry = self._states.release_left(host.nodename, host.instances)
            if entry is not None and entry.usable(self._oldest_s):
                return self._reported_fit(entry, request)
        if self._stale_report == "ignore":
            return None
        if entry is None:
            return HostFit(refused=NO_REPORT[0])
        if self._stale_report == "last":
            return self._reported_fit(entry, request)
        if not entry.report.healthy:
            return HostFit(refused=NO_REPORT[1])
        return HostFit(refused=NO_REPORT[2])

    def _reported_fit(self, entry: Entry, request: ReportedInstance) -> HostFit:
        """The fit by a report; cached in the entry unless it is special for this instance."""
        if entry.counts(self._resource) or request is not self._request:
            return host_fit.fit(entry.headroom_for(self._resource), request)
        fit: HostFit | None = entry.results.get(self._key)
        if fit is None:
            fit = self._quick_fit(entry.headroom)
            if fit is None:
                if not self._repacks_left:
                    return HostFit(refused="its free capacity is fragmented; it was not repacked")
                self._repacks_left -= 1
                fit = host_fit.repacked_fit(entry.headroom, self._request)
            remember(entry.results, self._key, fit)
        return fit


def _dedicated(spec_obj: Any) -> bool:
    """Whether a request asks for dedicated CPUs, as all real-time and mixed guests do."""
    topology = spec_obj.numa_topology
    return topology is not None and any(cell.pcpuset for cell in topology.cells)


def _on_host(host: Any, spec_obj: Any, request: ReportedInstance) -> ReportedInstance | None:
    """The request as it is on this host, with the pCPUs of the cells to which Nova will pin it.

    ``None`` if no cells of this host suit the guest. Nova reads flavor and image and puts the
    result into the request; its own function selects the cells. It does so again on the host, and
    may choose others if another guest with a NUMA topology has arrived there meanwhile.
    """
    candidates = getattr(host, "allocation_candidates", None) or [{"mappings": {}}]
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
        provider_mapping=candidates[0]["mappings"],
    )
    if placed is None:
        return None
    pcpus = {cell.id: frozenset(cell.cpuset) for cell in host.numa_topology.cells}
    allowed = {vcpu: pcpus[cell.id] for cell in placed.cells for vcpu in cell.cpuset}
    vcpus = (
        structs.replace(v, cpus_allowed_list=cpulist.show(allowed[v.index])) for v in request.vcpus
    )
    return structs.replace(request, vcpus=tuple(vcpus))


def _prefer_core_type(host: Any, core_type: str) -> None:
    """Put the candidate on this core type first: Nova claims the first one in Placement."""
    candidates = getattr(host, "allocation_candidates", None)
    if candidates is None or len(candidates) < 2:
        return
    provider = provider_uuid(host.nodename, core_type)
    host.allocation_candidates = sorted(
        candidates, key=lambda candidate: provider not in candidate["allocations"]
    )


def _log_refused(refused: list[tuple[str, str]], spec_obj: Any) -> None:
    """Log the reasons for some hosts in one line, and for the others at debug level."""
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
    for node, why in refused[HOSTS_LOGGED_MAX:]:
        LOG.debug("instance %s: %s refused: %s", spec_obj.instance_uuid, node, why)
