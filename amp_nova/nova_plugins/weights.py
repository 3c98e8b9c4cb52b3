"""``AmpEfficiencyWeigher`` and ``AmpScalabilityWeigher``: where an instance does the cloud most
good.

Both give absolute scores, 0 to 1: what a host is worth to an instance does not depend on which
other hosts passed the filters. A host that nothing is known of has the score of a host of reference
cores.
"""

import abc
from typing import Any

from nova.scheduler import utils, weights

from amp_nova.flavor.extra_specs import Booking, best_effort
from amp_nova.nova_plugins import report_server
from amp_nova.nova_plugins.filters import read_booking
from amp_nova.nova_plugins.host_states import Entry, HostStates
from amp_nova.nova_plugins.report_server import CONF
from amp_nova.scheduling import host_fit, placement_score
from amp_nova.scheduling.placement_score import Outlook

NEUTRAL = Outlook(1.0, 1.0)


class _Question:
    """One instance that is weighed on every host."""

    def __init__(self, states: HostStates, spec_obj: Any) -> None:
        flavor = spec_obj.flavor
        booking, _ = read_booking(flavor.extra_specs, flavor.vcpus)
        self._booking: Booking = booking or best_effort(flavor.vcpus)
        self._ask = host_fit.ask_of(self._booking)
        self._oldest_s = states.oldest_s()
        image = spec_obj.image.id if spec_obj.image and "id" in spec_obj.image else ""
        self._known = states.sensitivity(spec_obj.instance_uuid, flavor.flavorid, image or "")
        self._resource = spec_obj.instance_uuid
        self._fit_key = states.key(self._ask)
        b = self._booking
        # To every hundredth: a measurement that creeps must not make all hosts think anew.
        known = None if self._known is None else round(self._known, 2)
        self._known = known
        self._key = (self._fit_key, len(b.vcpus), b.weight, b.efficiency, known)

    def answer(self, entry: Entry | None) -> Outlook:
        """What the instance would gain on a host, and the cloud."""
        if entry is None or not entry.usable(self._oldest_s):
            return NEUTRAL
        found = entry.outlooks.get(self._key)
        if found is None:
            found = entry.outlooks[self._key] = self._outlook(entry)
        return found

    def _outlook(self, entry: Entry) -> Outlook:
        market, topology = entry.market(), entry.snapshot.topology
        own = self._known
        if own is None:
            own = placement_score.hinted(self._booking.efficiency, topology)
        if own is None:
            own = placement_score.UNKNOWN
        here = entry.room()
        sizes = tuple(s.refcores for s in host_fit.sizes_of(self._ask, topology) or ())
        fit = entry.fits.get(self._fit_key) or host_fit.quick(here, self._ask)
        candidate = placement_score.candidate_of(self._booking, sizes, own)
        return placement_score.outlook(market, candidate, fit.core_types if fit else ())


class _AmpWeigher(weights.BaseHostWeigher):  # type: ignore[misc]
    minval = 0.0
    maxval = 1.0
    option = ""

    def __init__(self) -> None:
        self._server = report_server.shared()

    def weight_multiplier(self, host_state: Any) -> float:
        """As configured, or as the metadata of the host's aggregates say."""
        multiplier = getattr(CONF.amp_scheduler, self.option)
        return float(utils.get_weight_multiplier(host_state, self.option, multiplier))

    def weigh_objects(self, weighed_obj_list: Any, weight_properties: Any) -> list[float]:
        """The score of every host; what is asked is worked out once for all of them."""
        self._server.start()
        states = self._server.states
        question = _Question(states, weight_properties)
        return [
            self._score(question.answer(states.entry(weighed.obj.nodename)))
            for weighed in weighed_obj_list
        ]

    def _weigh_object(self, host_state: Any, weight_properties: Any) -> float:
        states = self._server.states
        question = _Question(states, weight_properties)
        return self._score(question.answer(states.entry(host_state.nodename)))

    @abc.abstractmethod
    def _score(self, outlook: Outlook) -> float:
        """The score, 0 to 1."""


class AmpEfficiencyWeigher(_AmpWeigher):
    """The throughput that the cloud gains if the instance goes to that host."""

    option = "amp_efficiency_weight_multiplier"

    def _score(self, outlook: Outlook) -> float:
        most = placement_score.GAIN_MAX
        return min(max((outlook.gain + 1.0) / (most + 1.0), 0.0), 1.0)


class AmpScalabilityWeigher(_AmpWeigher):
    """How fast the instance's vCPUs are there on the whole: how well it scales with what it finds.

    What books capacity has the speed it books everywhere, so it has no preference.
    """

    option = "amp_scalability_weight_multiplier"

    def _score(self, outlook: Outlook) -> float:
        return min(outlook.pace / placement_score.GAIN_MAX, 1.0)
