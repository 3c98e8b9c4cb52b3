# SPDX-License-Identifier: Apache-2.0
"""A host that reports anything at all harms nobody else: short runs of ``tests.support.chain``.

``tools/fuzz scheduler`` and ``python -m tests.support.chain`` do the same for as long as told.
"""

import json
import os
import random

import pytest

from tests.support import chain
from tests.support.chain import FLAVOR, IMAGE

SEQUENCES = int(os.environ.get("AMP_NOVA_FUZZ", "300"))
PCPUS = 512
ALL = f"0-{PCPUS - 1}"


@pytest.fixture
def cloud():
    """A scheduler of its own."""
    yield chain.Cloud()
    chain.report_server._shared = None
    chain.report_server.CONF.reset()  # Nova's fixtures register more options


def core_types(count, siblings):
    """As many core types, with as many hardware threads in each core."""
    each, found = PCPUS // count, []
    for at in range(count):
        first, end = at * each, (at + 1) * each
        made = {"name": f"t{at}", "coefficient": 1.0 + at, "nominal_ips": 1e9 * (1 + at)}
        made["pcpus"] = f"{first}-{end - 1}"
        if siblings > 1:
            made["smt_busy_factor"] = 0.6
            made["siblings"] = [f"{p}-{p + siblings - 1}" for p in range(first, end, siblings)]
        found.append(made)
    return found


def large(vcpu, types=(4, 8), **instance):
    """The report of a host of 512 pCPUs with 2,048 vCPUs in 512 instances, as JSON."""
    found = chain.seeds()[0]
    found["topology"]["core_types"] = core_types(*types)
    found["bookable"] = ALL
    weight, hint = instance.get("weight", 1.0), instance.get("hint")
    found["groups"] = [
        [
            f"{FLAVOR}{g}",
            IMAGE,
            [
                [f"{n:036d}", [vcpu(4 * n + i, i) for i in range(4)], None, weight, hint]
                for n in range(g, 512, 4)
            ],
        ]
        for g in range(4)
    ]
    return json.dumps(found, separators=(",", ":"))


def nothing_but(**document):
    """A document with the origin of the liar, and little else that is right."""
    return json.dumps({"version": 2, "origin": chain.seeds()[0]["origin"], **document})


MEASURED = [None, None, ALL, None, None, 0.9213, [1.4523, 0.0523]]
ACCEPTED = {
    "best effort": large(lambda _, i: [i, *MEASURED]),
    "weights and hints": large(lambda _, i: [i, *MEASURED[:-1]], weight=2.0, hint=1.5),
    "booked": large(lambda k, i: [i, 0.125, None, ALL, "t1", k % PCPUS, 0.5432], types=(2, 2)),
    "booked, whole cores": large(lambda k, i: [i, 0.9134, None, ALL, "t1", k % PCPUS]),
    "booked, no place": large(lambda _, i: [i, None, 1.5e8, ALL]),
    "booked, more than any core": large(lambda _, i: [i, 1e18, None, ALL]),
}
REFUSED = {
    "thousands of CPU lists": large(lambda k, i: [i, None, None, f"{k % 511},{k // 4 + 1}"]),
    "all fields": large(lambda k, i: [i, 1e18, 1e9, f"{k % PCPUS}", "t1", 300, 0.1, [1.5, 0.1]]),
    "tiny vCPUs": nothing_but(groups=[["", "", [["a", [[0]] * 60_000]]]]),
    "some tiny vCPUs": nothing_but(groups=[["", "", [["a", [[0]] * 11_000]]]]),
    "strings": nothing_but(problems=["ab"] * 16_000),
    "wide strings": nothing_but(problems=["a" * 30_000 + "\U0001f600"]),
    "depth": '{"version":2,"x":' + "[" * 9000,
    "parts": nothing_but(bookable="1," * 11_000 + "1", topology={"core_types": [{"name": "a"}]}),
    "pCPUs again and again": nothing_but(
        bookable=",".join(["0-8191"] * 30_000), topology={"core_types": [{"name": "a"}]}
    ),
}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [(t, True) for t in ACCEPTED.values()] + [(t, False) for t in REFUSED.values()],
    ids=[*ACCEPTED, *REFUSED],
)
def test_the_costliest_reports_stay_within_the_budgets(cloud, text, accepted):
    """10 ms of CPU time and 1 MiB, whether such a report is accepted or refused."""
    assert cloud.states.accept(text) == accepted
    cloud.check_cost(text)
    cloud.check([text])


def test_a_host_costs_no_more_for_having_reported_many_states(cloud):
    """120 small reports of as many topologies and CPU lists, from one host."""

    def report(number):
        found = chain.seeds()[0]
        found["origin"]["sequence"] = number
        found["topology"]["core_types"] = [
            {"name": "a", "coefficient": 1.0, "pcpus": f"{number}-{number + 900}"}
        ]
        found["bookable"] = f"{number}-{number + 901}"
        return json.dumps({**found, "groups": []})

    cloud.states.accept(report(1))
    chain.tracemalloc.start()
    try:
        for number in range(2, 122):
            assert cloud.states.accept(report(number))
        chain.gc.collect()
        kept, _ = chain.tracemalloc.get_traced_memory()
    finally:
        chain.tracemalloc.stop()
    assert kept < chain.BYTES_MAX


def test_whatever_a_host_reports_requests_succeed_and_the_others_keep_their_order(cloud):
    """Random sequences of reports, through Nova's filter and weigher handlers."""
    assert chain.run(cloud, SEQUENCES, seed=random.randrange(1 << 31)) == SEQUENCES
    assert cloud.cost.accepted > SEQUENCES / 4
    for _, text in (*cloud.cost.dearest[:2], *cloud.cost.longest[:2]):
        cloud.check_cost(text)


def test_a_changed_order_is_found(cloud):
    """The check of all others compares with the order in which the host does not exist."""
    cloud._undisturbed[0].reverse()
    with pytest.raises(AssertionError):
        cloud.check([json.dumps(chain.seeds()[0])])
