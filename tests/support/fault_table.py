# SPDX-License-Identifier: Apache-2.0
"""The table of faults: what became of the tests marked ``fault(fault, holds)``, by fault.

``pytest -m fault`` runs these alone, prints the table, and fails if anything did not hold or was
not tried. A test says how often it injected the fault and how long recovery took with
``record_property``: ``times`` (once unless told) and ``recovery_s``. ``tests/conftest.py`` has the
hooks.
"""

from dataclasses import dataclass, field

import pytest

ROW = "{:<44} {:>6} {:<9} {:>10}  {}"


def alone(config: pytest.Config) -> bool:
    """Whether only tests that inject faults run."""
    return bool(config.option.markexpr == "fault")


@dataclass(slots=True)
class Row:
    """One fault: how often it was injected, and what came of it."""

    holds: list[str] = field(default_factory=list)
    times: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    recovery_s: float = 0.0

    @property
    def held(self) -> str:
        """Whether it held; nothing that was not tried does."""
        if self.failed:
            return "NO"
        return "yes" if self.times and not self.skipped else "not tried"

    def lines(self, fault: str) -> list[str]:
        """Its part of the table, with the tests that failed or were skipped."""
        took = f"{self.recovery_s:.1f}" if self.recovery_s else ""
        first = ROW.format(fault, self.times, self.held, took, self.holds[0])
        more = [ROW.format("", "", "", "", holds) for holds in self.holds[1:]]
        return [first, *more, *(f"    {test}" for test in (*self.failed, *self.skipped))]


def rows(config: pytest.Config) -> dict[str, Row]:
    """Every fault of this run."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    found: dict[str, Row] = {}
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in reporter.stats.get(outcome, ()) if reporter else ():
            said = dict(report.user_properties)
            if "fault" not in said:
                continue
            fault, holds = said["fault"]
            row = found.setdefault(fault, Row())
            if holds not in row.holds:
                row.holds.append(holds)
            if outcome == "passed":
                row.times += int(said.get("times", 1))
                row.recovery_s = max(row.recovery_s, float(said.get("recovery_s", 0.0)))
            else:
                (row.skipped if outcome == "skipped" else row.failed).append(report.nodeid)
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the report of each test say what it is about."""
    for item in items:
        if (mark := item.get_closest_marker("fault")) is not None:
            item.user_properties.append(("fault", mark.args))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail where not everything was tried and held."""
    if alone(session.config) and not hasattr(session.config, "workerinput"):
        found = rows(session.config).values()
        if not found or any(row.held != "yes" for row in found):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


# In quotes, because pytest 8.0 does not export it.
def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Print the table."""
    if alone(terminalreporter.config):
        terminalreporter.section("faults")
        heads = ("fault", "times", "held", "recovery s", "what must hold")
        terminalreporter.write_line(ROW.format(*heads))
        for fault, row in sorted(rows(terminalreporter.config).items()):
            terminalreporter.write_line("\n".join(row.lines(fault)))
