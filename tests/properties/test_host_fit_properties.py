# SPDX-License-Identifier: Apache-2.0
"""The scheduler's host fit and the agent's packing always agree."""

import copy
import uuid
from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from amp_nova.flavor.extra_specs import parse
from amp_nova.hardware.effective_speed import SMT_MODES, for_admission
from amp_nova.scheduling import host_fit
from amp_nova.scheduling.demands import request_of
from amp_nova.scheduling.host_fit import capacity_of, fit, quick_fit
from amp_nova.wire.encoding import decode, encode
from tests.support import packing_hosts
from tests.support.hosts import smt_host, topology
from tests.support.packing_hosts import PackingHost

FLAVORS = (
    (1, {"amp:pref_core": "0.5"}),
    (2, {"amp:pref_core": "0.7"}),
    (1, {"amp:pref_core": "1.6"}),
    (2, {"amp:pref_core.0": "1.2", "amp:pref_core.1": "0.3"}),
    (1, {"amp:pref_core": "0.4", "amp:core_type": "fast"}),
    (2, {"amp:ips": "0.8G"}),
    (1, {"amp:ips": "2.9G"}),
    (2, {"amp:ips.0": "3.7G", "amp:pref_core.1": "0.25"}),
    (1, {"amp:pref_core": "1"}),
    (2, {"amp:pref_core": "1"}),
    (1, {"amp:pref_core": "0.45"}),
    (1, {"amp:pref_core": "1.95"}),
    (1, {"amp:pref_core": "2"}),
    (1, {"amp:ips": "4G"}),
)


@st.composite
def hosts(draw):
    """A few slow and fast pCPUs whose nominal Ips do not follow their coefficients.

    Some fast cores have two hardware threads; on some hosts guests cannot span core types.
    """
    counts = draw(st.tuples(st.integers(1, 3), st.integers(1, 2)))
    fast = draw(st.sampled_from([1.5, 2.0, 3.0]))
    made = draw(
        st.sampled_from(
            [
                topology({"slow": (counts[0], 1.0), "fast": (counts[1], fast)}),
                smt_host(counts[1], draw(st.sampled_from([0.5, 0.62])), counts[0], fast),
            ]
        )
    )
    made = for_admission(made, draw(st.sampled_from(SMT_MODES)))
    rates = 2e9, draw(st.sampled_from([3e9, 4e9, 5e9]))
    rated = (replace(t, nominal_ips=r) for t, r in zip(made.core_types, rates, strict=True))
    made = replace(made, core_types=tuple(rated), one_type=draw(st.booleans()))
    return made, draw(st.sampled_from([0.0, 0.05, 0.1]))


@given(hosts(), st.lists(st.sampled_from(FLAVORS) | st.integers(0, 20), max_size=25))
def test_the_filter_passes_a_host_if_and_only_if_the_agent_can_pack_it(host, events):
    """After any sequence of arrivals and departures."""
    agent = PackingHost(*host)
    for number, event in enumerate(events):
        if isinstance(event, int):
            if agent.domains:
                agent.remove(sorted(agent.domains)[event % len(agent.domains)])
                agent.cycle()
            continue
        vcpus, specs = event
        capacity = capacity_of(decode(encode(agent.report())))
        request = request_of(parse(specs, vcpus))
        found = fit(capacity, request)
        quick = quick_fit(capacity, request)
        with mock.patch.object(host_fit, "_type_for_each", return_value=None):
            assert quick_fit(capacity, request) == quick
        after = copy.deepcopy(agent)
        name = str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))  # in no order
        after.add(name, specs, vcpus)
        assert (found.refused is None) == (after.cycle() == []), (specs, found)
        if found.refused is None:
            agent = after


@given(st.randoms(use_true_random=False), st.integers(1, 4))
def test_an_admitted_guest_finds_a_place_and_keeps_it(chance, most):
    """Whatever it may use, whoever comes and goes, and whatever its work turns out to gain.

    If several arrive at a time, the agent does not know in which order the scheduler packed them,
    and its search may end before it has found a packing.
    """
    found = packing_hosts.life(chance, most)

    assert found in ("", "unplaced") if most > 1 else found == ""
