"""The check of a policy's places before they are applied."""

import pytest

from amp_nova.exceptions import InvalidPlan
from amp_nova.policies.api import check
from tests.hosts import topology

KEY = ("vm", 0)


def refusal(pcpus=(0, 1), key=KEY, allowed=(0, 1, 2), offline=()):
    with pytest.raises(InvalidPlan) as caught:
        check({key: frozenset(pcpus)}, {KEY: frozenset(allowed)}, topology(offline=offline))
    return str(caught.value)


def test_valid_places_are_accepted():
    """Allowed pCPUs that are online, or no places at all."""
    check({KEY: frozenset({0, 1})}, {KEY: frozenset({0, 1, 2})}, topology())
    check({}, {}, topology())


def test_invalid_places_are_refused():
    """Each refusal names the vCPU and, where one pCPU is the reason, that pCPU."""
    assert "('vm', 7)" in refusal(key=("vm", 7))
    assert "no pCPU" in refusal([])
    assert "may not use pCPU 2" in refusal([1, 2, 9], allowed=[0, 1])
    assert "offline" in refusal([0, 2], offline=[2])
