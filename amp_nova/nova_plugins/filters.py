"""``AmpCapacityFilter``: a host passes if the booking fits it, packed as its agent packs."""

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nova.scheduler import filters
from nova.scheduler.host_manager import HostState

from amp_nova.flavor.extra_specs import NAMESPACE, Booking, examine
from amp_nova.flavor.placement_resources import PLACEMENT_CLASS, provider_uuid
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_states import Entry
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.scheduling import host_fit
from amp_nova.scheduling.host_fit import Ask, Fit

LOG = logging.getLogger(__name__)
HOSTS_NAMED_MAX = 5
_PREFIX = f"{NAMESPACE}:"


@functools.lru_cache(maxsize=1024)
def _examine(specs: tuple[tuple[str, str], ...], vcpus: int) -> tuple[Booking | None, str]:
    booking, errors = examine(dict(specs), vcpus)
    return booking, "; ".join(errors)


def read_booking(specs: Mapping[str, str], vcpus: int) -> tuple[Booking | None, str]:
    """The booking in a flavor's extra specs, or why there is none in them; remembers flavors."""
    return _examine(tuple(sorted(specs.items())), vcpus)


class AmpCapacityFilter(filters.BaseHostFilter):  # type: ignore[misc]
    """Keeps hosts that have room for what the instance books."""

    # A rebuild stays where it is, with the share it has: there is nothing to decide.
    RUN_ON_REBUILD = False

    def __init__(self) -> None:
        self._server = report_server.shared()
        self._states = self._server.states

    def host_passes(self, host_state: Any, spec_obj: Any) -> bool:
        """Whether one host passes."""
        return any(True for _ in self.filter_all([host_state], spec_obj))

    def filter_all(self, filter_obj_list: Any, spec_obj: Any) -> Iterator[Any]:
        """The hosts that pass; what is asked is worked out once for all of them."""
        specs = spec_obj.flavor.extra_specs
        if not any(key.startswith(_PREFIX) for key in specs):
            yield from filter_obj_list
            return
        self._server.start()
        booking, errors = read_booking(specs, spec_obj.flavor.vcpus)
        if booking is None:
            LOG.warning(
                "instance %s gets no host: flavor %s: %s",
                spec_obj.instance_uuid,
                spec_obj.flavor.name,
                errors,
            )
            return
        if not (booking.booked or booking.core_type) or _is_rebuild(spec_obj):
            yield from filter_obj_list
            return
        yield from self._filtered(filter_obj_list, spec_obj, booking)

    def _filtered(self, hosts: Any, spec_obj: Any, booking: Booking) -> Iterator[Any]:
        ask, states = host_fit.ask_of(booking), self._states
        claims = any(key.endswith(f":{PLACEMENT_CLASS}") for key in spec_obj.flavor.extra_specs)
        question = _Question(ask, states.key(ask), spec_obj.instance_uuid)
        refused: list[tuple[str, str]] = []
        oldest_s, stale_report = states.oldest_s(), CONF.amp_scheduler.stale_report
        for host in hosts:
            entry = states.entry(host.nodename)
            if entry is not None and not entry.away.issubset(host.instances):
                entry = states.gone(host.nodename, host.instances)
            usable = entry is not None and entry.usable(oldest_s)
            if entry is not None and usable:
                fit = question.answer(entry)
            else:
                fit = _unknown(question, entry, stale_report)
            if fit.refused is not None:
                refused.append((host.nodename, fit.refused))
                continue
            if claims and fit.core_types:
                _prefer(host, fit.core_types[0])
            if usable or stale_report != "ignore":
                self._guard(host, spec_obj, ask)
            host.consume_from_request = functools.partial(self._consume, host, ask)
            yield host
        if refused:
            _say(refused, spec_obj)

    def _guard(self, host: Any, spec_obj: Any, ask: Ask) -> None:
        """Have the room looked at once more, and taken, as Nova turns to this host."""
        candidates = getattr(host, "allocation_candidates", None)
        if candidates is not None:
            take = functools.partial(self._take, host.nodename, spec_obj, ask)
            host.allocation_candidates = _Candidates(candidates, take)

    def _take(self, node: str, spec_obj: Any, ask: Ask) -> bool:
        return self._states.reserve(node, spec_obj.instance_uuid, ask)

    def _consume(self, host: Any, ask: Ask, spec_obj: Any) -> None:
        """Nova took this host: count the instance there, for requests to come."""
        HostState.consume_from_request(host, spec_obj)
        # Nova takes the mark away when the request as a whole fails.
        self._states.decided(
            host.nodename, spec_obj.instance_uuid, ask, lambda: host.updated is None
        )


class _Candidates(list[Any]):
    """A host's allocation candidates, none any more if its room was taken meanwhile.

    Just before Nova claims one it asks whether there are any, and skips the host if not. That is
    the last moment at which two requests that are decided at the same time in one worker can be
    kept off the same room; without Placement's claim nothing else would do it.
    """

    def __init__(self, candidates: Iterable[Any], take: Callable[[], bool]) -> None:
        super().__init__(candidates)
        self._take = take

    def __bool__(self) -> bool:
        return len(self) > 0 and self._take()


class _Question:
    """One booking that looks for a host."""

    def __init__(self, ask: Ask, key: int, resource: str) -> None:
        self._ask = ask
        self._key = key
        self._resource = resource
        self._repackings = CONF.amp_scheduler.repacked_hosts_max

    def answer(self, entry: Entry) -> Fit:
        """Whether it fits a host; remembered, but for an instance that is there already."""
        if self._resource in entry.snapshot.instance_of or self._resource in entry.pending:
            return host_fit.fit(entry.room_without(self._resource), self._ask)
        found = entry.fits.get(self._key)
        if found is None:
            found = host_fit.quick(entry.room(), self._ask)
            if found is None:
                if not self._repackings:
                    return Fit(refused="it has no room in one piece, and was not packed anew")
                self._repackings -= 1
                found = host_fit.thorough(entry.room(), self._ask)
            entry.fits[self._key] = found
        return found


def _unknown(question: _Question, entry: Entry | None, stale_report: str) -> Fit:
    """What a stale report, or none at all, means."""
    if stale_report == "ignore":
        return Fit()
    if entry is None:
        return Fit(refused="its agent has not reported")
    if stale_report == "last":
        return question.answer(entry)
    if not entry.snapshot.healthy:
        return Fit(refused="its agent cannot reach the hypervisor")
    return Fit(refused="its agent's last report is too old")


def _is_rebuild(spec_obj: Any) -> bool:
    from nova.scheduler import utils

    return bool(utils.request_is_rebuild(spec_obj))


def _prefer(host: Any, core_type: str) -> None:
    """Have Placement's claim made on the core type that the packing uses; Nova takes the first."""
    candidates = getattr(host, "allocation_candidates", None)
    if candidates is None or len(candidates) < 2:
        return
    provider = provider_uuid(host.nodename, core_type)
    host.allocation_candidates = sorted(
        candidates, key=lambda candidate: provider not in candidate["allocations"]
    )


def _say(refused: list[tuple[str, str]], spec_obj: Any) -> None:
    """One line that says why hosts were refused; all of them for debugging."""
    shown = "; ".join(f"{node}: {why}" for node, why in refused[:HOSTS_NAMED_MAX])
    more = len(refused) - HOSTS_NAMED_MAX
    LOG.info(
        "instance %s, flavor %s: %d hosts refused: %s%s",
        spec_obj.instance_uuid,
        spec_obj.flavor.name,
        len(refused),
        shown,
        f"; and {more} more" if more > 0 else "",
    )
    if more > 0 and LOG.isEnabledFor(logging.DEBUG):
        for node, why in refused[HOSTS_NAMED_MAX:]:
            LOG.debug("instance %s: %s refused: %s", spec_obj.instance_uuid, node, why)
