# SPDX-License-Identifier: Apache-2.0
"""Benchmarks compare what they measure with ``budgets.toml``, and fail above it."""

import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.conftest import (  # noqa: F401 - fixtures
    agent,
    guests,
    lab,
    nothing_is_left,
    writer,
)

BUDGETS = tomllib.loads(Path(__file__).with_name("budgets.toml").read_text())
SCALE = float(os.environ.get("AMP_NOVA_BUDGETS", "1"))
_figures: list[str] = []


@pytest.fixture(scope="session")
def within() -> Callable[[str, float], None]:
    """Fail if a figure exceeds its budget; all figures are printed at the end of the run."""

    def check(name: str, value: float) -> None:
        budget = SCALE * BUDGETS[name]["budget"]
        line = f"{name}: {value:.4g}, budget {budget:.4g} ({BUDGETS[name]['what']})"
        _figures.append(line)
        assert value <= budget, line

    return check


# In quotes, because pytest 8.0 does not export it.
def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print the figures, passed or failed."""
    if _figures:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(_figures))
