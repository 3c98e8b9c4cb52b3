"""Anything in any field: a value or one clear sentence, never another exception.

``AMP_NOVA_FUZZ=100000`` sets the number of inputs for each place (default 60).
"""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("oslo_config", reason="oslo.config is not installed")

from tests import fuzz, hostile
from tests.mutations import NASTY, in_text, places, put

COUNT = int(os.environ.get("AMP_NOVA_FUZZ", "60"))

# What breaks readers: numbers of any length, control characters, text of any size, other types.
atoms = st.one_of(
    st.integers(),
    st.integers(1, 6000).map(lambda n: int("9" * min(n, 4000))),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=20),
    st.text(NASTY, max_size=12),
    st.sampled_from(["", "nan", "1e999", "-0", "0x10", "9" * 5000, "x" * 70_000, "१२", "²", "∞"]),
    st.sampled_from([[], {}, [[]], {"": None}, ["x"] * 3000]),
)
words = atoms.map(lambda a: a if isinstance(a, str) else json.dumps(a, default=str))


@st.composite
def changed(draw, seeds):
    """A valid input with a few values replaced, cut or repeated; sometimes none of it is left."""
    text = draw(st.sampled_from(seeds))
    rng = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 3))):
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            text = in_text(text, rng, draw(words))
        else:
            path = rng.choice(list(places(document)))
            text = json.dumps(put(document, path, draw(atoms)))
    return draw(words) if draw(st.integers(0, 30)) == 0 else text


def test_every_place_is_fuzzed():
    """``tools/fuzz`` knows what each costs."""
    assert set(fuzz.PLACES) == {*hostile.surfaces(), fuzz.NEEDS_NOVA}


@pytest.mark.parametrize("name", sorted(hostile.surfaces()))
def test_the_seeds_are_valid(name):
    """Otherwise nothing behind the first check is reached."""
    surface = hostile.surfaces()[name]
    if name == "command":  # these name files that are not there
        pytest.skip("names files")
    for seed in surface.seeds:
        surface.read(seed)


@pytest.mark.parametrize("name", sorted(hostile.surfaces()))
def test_any_input_is_a_value_or_one_sentence(name):
    """In every place where others' input enters."""
    surface = hostile.surfaces()[name]

    @settings(
        max_examples=COUNT,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(changed(surface.seeds))
    def check(text):
        surface.check(text)

    check()
