# SPDX-License-Identifier: Apache-2.0
"""The list of mutants fits the product; ``python -m tests.mutations`` makes them."""

import pytest

from tests.mutations.__main__ import MUTANTS, ROOT, made


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_has_one_place_and_tests(mutant):
    """A line that was rewritten has to be listed as it is now."""
    assert made(mutant, (ROOT / "amp_nova" / mutant.file).read_text())
    file, _, name = mutant.tests.partition("::")
    path = ROOT / "tests/unit" / file
    assert path.exists()
    assert not name or f"def {name}(" in path.read_text()
