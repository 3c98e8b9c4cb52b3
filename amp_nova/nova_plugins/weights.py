# SPDX-License-Identifier: Apache-2.0
"""``AmpEfficiencyWeigher`` and ``AmpScalabilityWeigher``: where an instance is most useful.

Both give absolute scores from 0 to 1: what a host is worth to an instance does not depend on which
other hosts passed the filters. A host without a usable report scores as if all its cores were
reference cores.
"""

from typing import Any

from nova.scheduler import utils, weights

from amp_nova.flavor.extra_specs import Booking, best_effort
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.host_entry import Entry
from amp_nova.nova_plugins.host_states import HostStates
from amp_nova.nova_plugins.nova_records import read_booking
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.scheduling import demands, placement_score
from amp_nova.scheduling.host_fit import HostFit
from amp_nova.scheduling.placement_score import NewInstance
from amp_nova.scheduling.sensitivity import UNKNOWN, hinted_sensitivity, scale_of

_MOST = placement_score.GAIN_MAX


def _weights(gain: float, speed: float) -> tuple[float, float]:
    """What the two weighers give for a score: the efficiency weight and the scalability weight.

    Within 0 and 1, whatever the score was computed from; 0 for what is not a number.
    """
    efficiency, scalability = (gain + 1.0) / (_MOST + 1.0), speed / _MOST
    return min(1.0, max(0.0, efficiency)), min(1.0, max(0.0, scalability))


NEUTRAL = _weights(gain=1.0, speed=1.0)


class _WeightsQuery:
    """One instance, weighed on every host."""

    def __init__(self, states: HostStates, spec_obj: Any) -> None:
        flavor, image = spec_obj.flavor, ""
        if spec_obj.image and "id" in spec_obj.image:
            image = spec_obj.image.id or ""
        booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
        self._booking: Booking = booking or best_effort(flavor.vcpus)
        self._request = demands.request_of(self._booking)
        self._entry = states.entry
        self._oldest_s = states.oldest_s()
        measured = states.sensitivity((flavor.flavorid, image))
        # Rounded, so that a slowly changing measurement does not defeat the cache.
        self._sensitivity = None if measured is None else round(measured, 2)
        self._fit_key = repr(self._request)
        self._weights_key = repr((self._booking, self._sensitivity))

    def weights(self, node: str) -> tuple[float, float]:
        """The weights of a host, cached in its entry."""
        entry = self._entry(node)
        if entry is None or not entry.usable(self._oldest_s):
            return NEUTRAL
        found: tuple[float, float] | None = entry.results.get(self._weights_key)
        if found is None:
            found = entry.results[self._weights_key] = self._computed(entry)
        return found

    def _computed(self, entry: Entry) -> tuple[float, float]:
        report, own = entry.report, self._sensitivity
        fit: HostFit | None = entry.results.get(self._fit_key)  # by the filter
        if own is None:
            own = hinted_sensitivity(self._booking.efficiency, scale_of(report.topology))
        unbooked = len(self._booking.vcpus) - len(self._request.vcpus)
        booked = tuple(d.refcores for d in demands.demands_of(self._request, report))
        new = NewInstance(unbooked, booked, UNKNOWN if own is None else own)
        gain, speed = placement_score.score(entry.best_effort, new, fit.core_types if fit else ())
        return _weights(gain, speed)


class _AmpWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    minval = 0.0
    maxval = 1.0
    option = ""
    part = 0
    """The position of its weight in ``_weights``."""

    def __init__(self) -> None:
        self._server = report_server.shared()
        self._multiplier = 1.0

    def weight_multiplier(self, host_state: Any) -> float:
        """The multiplier from the metadata of the host's aggregates, else the configured one."""
        return float(utils.get_weight_multiplier(host_state, self.option, self._multiplier))

    def weigh_objects(self, weighed_obj_list: Any, weight_properties: Any) -> list[float]:
        """The scores of all hosts; the booking is read once for all of them."""
        self._server.start()
        # Looked up once, not for each host.
        self._multiplier = float(getattr(CONF.amp_scheduler, self.option))
        weights_of = _WeightsQuery(self._server.states, weight_properties).weights
        return [weights_of(w.obj.nodename)[self.part] for w in weighed_obj_list]

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        (weight,) = self.weigh_objects([weights.WeighedHost(host_state, 0.0)], weight_properties)
        return weight


class AmpEfficiencyWeigher(_AmpWeigher):
    """Prefers the host where the instance adds most to the cloud's throughput."""

    option = "amp_efficiency_weight_multiplier"
    part = 0


class AmpScalabilityWeigher(_AmpWeigher):
    """Prefers the host where the instance's best-effort vCPUs run fastest.

    Booked vCPUs have the same speed everywhere, so they have no preference.
    """

    option = "amp_scalability_weight_multiplier"
    part = 1
