"""What a policy answers is checked before anything is done."""

import pytest

from amp_nova.exceptions import InvalidPlan
from amp_nova.policies.api import check
from tests.hosts import reading, topology

KEY = ("vm", 0)


def refused(places, allowed=(0, 1, 2), offline=()):
    with pytest.raises(InvalidPlan) as caught:
        check(places, {KEY: reading(allowed=allowed)}, topology(offline=offline))
    return str(caught.value)


def test_good_places():
    """Nothing is raised."""
    check({KEY: frozenset({0, 1})}, {KEY: reading()}, topology())
    check({}, {KEY: reading()}, topology())


def test_bad_places():
    """The vCPU is named, and the pCPU if one is to blame."""
    assert "('vm', 7)" in refused({("vm", 7): frozenset({0})})
    assert "no pCPU" in refused({KEY: frozenset()})
    assert "may not use pCPU 2" in refused({KEY: frozenset({1, 2, 9})}, allowed=[0, 1])
    assert "offline" in refused({KEY: frozenset({0, 2})}, offline=[2])
