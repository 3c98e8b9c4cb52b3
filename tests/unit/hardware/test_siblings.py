# SPDX-License-Identifier: Apache-2.0
"""Hardware threads that the operator declares, and what a busy sibling leaves of a thread."""

from amp_nova.hardware import operator_types, siblings
from amp_nova.hardware.designs import CpuFacts, MachineFacts
from amp_nova.hardware.detect import classify
from amp_nova.hardware.effective_speed import bookable_refcores
from tests.support.hosts import smt_host, topology


def plain():
    """Two slow and two fast pCPUs; nothing says which are threads of one core."""
    return topology({"slow": (2, 1.0), "fast": (2, 2.0)})


def lines(*texts):
    return [operator_types.parse(text) for text in texts]


def declared(*texts, siblings_of=lambda cpu: ()):
    """Four CPUs with these core types; ``siblings_of``: what the machine reports."""
    facts = MachineFacts(tuple(CpuFacts(cpu, siblings=siblings_of(cpu)) for cpu in range(4)))
    return classify(facts, lines(*texts), "slow")


def test_declared_threads_are_siblings():
    """Neighbours in a line are threads of one core, whatever was detected; others stay."""
    found = declared("slow 0-1", "fast 2-3 2.0 threads=2")

    assert [found.siblings_of(p) for p in range(4)] == [(), (), (3,), (2,)]
    assert [t.threads_per_core for t in found.core_types] == [1, 2]

    found = declared("fast 0-3 2.0 threads=1", siblings_of=lambda cpu: (cpu, cpu ^ 1))

    assert [found.siblings_of(p) for p in range(4)] == [(), (), (), ()]
    assert [t.threads_per_core for t in found.core_types] == [1]


def test_a_declared_factor_replaces_the_measured_one():
    """Only for the core type that is named."""
    found = siblings.with_factors(smt_host(1, slow=1), lines("fast 0-1 2.0 smt=0.5", "slow 2"))

    assert [t.smt_busy_factor for t in found.core_types] == [None, 0.5]


def test_a_cost_that_nobody_measured_or_declared_is_half_and_a_warning():
    """Two threads do at least the work of one, so no more is promised than there is."""
    unmeasured = declared("slow 0-1", "fast 2-3 2.0 threads=2")

    found = siblings.with_factors(unmeasured, ())

    assert [t.smt_busy_factor for t in found.core_types] == [None, 0.5]
    assert bookable_refcores(found, frozenset({2, 3})) == {"slow": 0.0, "fast": 2.0}
    assert "what a busy sibling costs on fast" in found.warnings[-1]
    assert siblings.with_factors(unmeasured, lines("fast 2-3 2.0 smt=0.6")).warnings == ()
    assert siblings.with_factors(plain(), ()) == plain()
