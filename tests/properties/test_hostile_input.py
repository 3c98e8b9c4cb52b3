# SPDX-License-Identifier: Apache-2.0
"""Anything in any field: a value or one clear sentence, never another exception.

``AMP_NOVA_FUZZ=100000`` sets the number of inputs for each place (default 60).
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("oslo_config", reason="oslo.config is not installed")

from tests.support import fuzz, hostile
from tests.support.wrong_documents import atom, mutated

COUNT = int(os.environ.get("AMP_NOVA_FUZZ", "60"))


def test_every_place_is_fuzzed():
    """``tools/fuzz`` knows what each costs."""
    assert set(fuzz.PLACES) == {*hostile.surfaces(), fuzz.NEEDS_NOVA}


@pytest.mark.parametrize("name", sorted(hostile.surfaces()))
def test_any_input_is_a_value_or_one_sentence(name):
    """In every place where others' input enters.

    The seeds are valid: otherwise nothing behind the first check is reached.
    """
    surface = hostile.surfaces()[name]
    for seed in surface.seeds if name != "command" else ():  # these name files that are not there
        surface.read(seed)

    @settings(
        max_examples=COUNT,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.sampled_from(surface.seeds), st.randoms(use_true_random=False))
    def check(text, rng):
        nothing_is_left = rng.randrange(30) == 0
        surface.check(str(atom(rng)) if nothing_is_left else mutated(text, rng))

    check()
