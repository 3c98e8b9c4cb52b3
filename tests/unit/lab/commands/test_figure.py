# SPDX-License-Identifier: Apache-2.0
"""Which policies are worth choosing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova_lab.commands.figure import TOLERANCE_RATIO, groups, message

results = st.lists(
    st.tuples(st.floats(0.5, 3.0), st.floats(1.0, 4.0)), min_size=1, max_size=12
).map(
    lambda found: [
        {"policy": f"p{n}", "throughput": t, "unfairness": u} for n, (t, u) in enumerate(found)
    ]
)


def row(policy, throughput, unfairness):
    return {"policy": policy, "throughput": throughput, "unfairness": unfairness}


@given(results)
def test_no_policy_of_the_front_is_beaten(rows):
    """And every policy is in one group; one that is not of the front has one that beats it."""
    found = groups(rows)
    most = 1.0 + TOLERANCE_RATIO

    assert sorted(p for g in found for p in g.policies) == sorted(r["policy"] for r in rows)
    assert any(g.front for g in found)
    for group in found:
        better = [
            o
            for o in found
            if o.throughput > group.throughput * most and o.unfairness * most < group.unfairness
        ]
        assert not (group.front and better)
        if not group.front:
            assert any(
                o.throughput * most >= group.throughput and o.unfairness <= group.unfairness * most
                for o in found
                if o is not group
            )


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (
            [row("a", 2.0, 1.0), row("b", 1.5, 1.2), row("c", 2.0, 1.001)],
            "The most throughput and the least unfairness: a, c.",
        ),
        (
            [row("a", 2.0, 2.0), row("b", 1.5, 1.0), row("c", 1.8, 1.5)],
            "The most throughput: a (2.000); the least unfairness: b (1.000); in between: c.",
        ),
        ([row("a", None, None)], "No policy has both a throughput and an unfairness."),
    ],
    ids=["one is best", "a choice", "a host without guests"],
)
def test_what_the_comparison_says(rows, says):
    """Equal ones together; the ends of the front with their values, and what lies between them."""
    assert message(groups(rows)) == says
