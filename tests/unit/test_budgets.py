"""Budgets of benchmarks are compared with what is measured."""

import re

import pytest

from tests.benchmarks import conftest
from tests.support.monitoring import ROOT

FOLDER = ROOT / "tests/benchmarks"


def test_every_budget_is_compared_with_a_figure():
    """A budget that no benchmark measures would be kept for ever."""
    text = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    families = re.findall(r'f"(\w*)\{\w+\}(\w*)"', text)

    for name, budget in conftest.BUDGETS.items():
        made = any(name.startswith(a) and name.endswith(b) and a + b for a, b in families)
        assert made or f'"{name}"' in text, name
        assert set(budget) == {"budget", "what", "depends_on"}, name


@pytest.mark.parametrize(("figure", "kept"), [(4999.0, True), (5000.0, True), (5001.0, False)])
def test_a_figure_above_its_budget_fails(pytester, monkeypatch, figure, kept):
    """And is printed with it."""
    monkeypatch.setattr(conftest, "_figures", [])
    pytester.makeconftest("from tests.benchmarks.conftest import *")
    pytester.makepyfile(f"def test_it(within): within('report_bytes', {figure})")

    result = pytester.runpytest_inprocess()

    assert (result.ret == 0) == kept
    result.stdout.fnmatch_lines([f"report_bytes: {figure:.4g}, budget 5000 *"])
