# SPDX-License-Identifier: Apache-2.0
"""Hardware threads that the operator declares, and what a busy sibling leaves of a thread."""

import pytest

from amp_nova.exceptions import ConfigInvalid
from amp_nova.hardware import siblings
from amp_nova.hardware.effective_speed import bookable_refcores
from tests.support.hosts import smt_host, topology


def plain():
    """Two slow and two fast pCPUs; nothing says which are threads of one core."""
    return topology({"slow": (2, 1.0), "fast": (2, 2.0)})


@pytest.mark.parametrize(
    ("host", "lines", "siblings_of", "threads"),
    [
        (plain(), ["2-3"], [(), (), (3,), (2,)], [1, 2]),
        (smt_host(2), ["0", "1-2"], [(), (2,), (1,), ()], [2]),
    ],
    ids=["others stay as they are", "a pCPU that is named alone has no siblings any more"],
)
def test_declared_threads_are_siblings(host, lines, siblings_of, threads):
    """The pCPUs of a line are threads of one core, whatever was detected."""
    found = siblings.declare(host, lines)

    assert [found.siblings_of(p) for p in range(4)] == siblings_of
    assert [t.threads_per_core for t in found.core_types] == threads


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["0-"], "write the pCPUs of one core, such as 0-1"),
        (["0-7"], "this machine has no pCPU 4, it has 0-3"),
        (["0-1", "1,0"], "pCPU 0 is in another line"),
        (["1-2"], "its pCPUs are of core types fast and slow"),
    ],
)
def test_a_wrong_line_is_refused_in_a_sentence(lines, why):
    """It names the line and what is wrong with it."""
    with pytest.raises(ConfigInvalid, match=r"^\[topology\] siblings = ") as caught:
        siblings.declare(plain(), lines)
    assert why in str(caught.value)


def test_a_declared_factor_replaces_the_measured_one():
    """Only for the core type that is named."""
    found = siblings.with_factors(smt_host(1, slow=1), ["fast 0.5"])

    assert [t.smt_busy_factor for t in found.core_types] == [None, 0.5]


@pytest.mark.parametrize("line", ["fast", "fast 1.5", "fast 0", "fast x", "big 0.6", "fast nan"])
def test_a_wrong_factor_is_refused_in_a_sentence(line):
    """It names the line and what is allowed."""
    with pytest.raises(ConfigInvalid, match=r"smt_busy_factor = .*(core types slow|from 0.1 to 1)"):
        siblings.with_factors(smt_host(1, slow=1), [line])


def test_a_cost_that_nobody_measured_or_declared_is_half_and_a_warning():
    """Two threads do at least the work of one, so no more is promised than there is."""
    unmeasured = siblings.declare(plain(), ["2-3"])
    declared = siblings.with_factors(unmeasured, ["fast 0.6"])

    found = siblings.assumed(unmeasured)

    assert [t.smt_busy_factor for t in found.core_types] == [None, 0.5]
    assert bookable_refcores(found, frozenset({2, 3})) == {"slow": 0.0, "fast": 2.0}
    assert "what a busy sibling costs on fast" in found.warnings[-1]
    assert siblings.assumed(declared) == declared
    assert siblings.assumed(plain()) == plain()
