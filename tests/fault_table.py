"""The table of faults: every test marked ``fault(fault, holds)`` that ran is part of a row.

A test says how often it injected the fault and how long recovery took with ``record_property``:
``times`` (once unless told) and ``recovery_s``. ``pytest --faults`` runs these tests alone, prints
the table, and fails if anything did not hold, or was not tried.
"""

from dataclasses import dataclass, field

import pytest

ROW = "{:<44} {:>6} {:<9} {:>10}  {}"
OPTION = "--faults"


@dataclass(slots=True)
class Row:
    """One fault: how often it was injected, and what came of it."""

    holds: list[str] = field(default_factory=list)
    times: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    recovery_s: float | None = None

    @property
    def held(self) -> str:
        """Whether it held; nothing that was not tried does."""
        if self.failed:
            return "NO"
        return "yes" if self.times and not self.skipped else "not tried"


class Table:
    """Collects reports of marked tests, by fault."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take the report of one phase of a test."""
        said = dict(report.user_properties)
        if "fault" not in said:
            return
        name, holds = said["fault"]
        row = self.rows.setdefault(name, Row())
        if holds not in row.holds:
            row.holds.append(holds)
        if report.failed:
            row.failed.append(report.nodeid)
        elif report.skipped:
            row.skipped.append(report.nodeid)
        elif report.when == "call":
            row.times += int(said.get("times", 1))
            if (took_s := said.get("recovery_s")) is not None:
                row.recovery_s = max(row.recovery_s or 0.0, float(took_s))

    @property
    def held(self) -> bool:
        """Whether there is anything, and all of it held."""
        return bool(self.rows) and all(row.held == "yes" for row in self.rows.values())

    def lines(self) -> list[str]:
        """The table; what must hold is said once for each sentence."""
        lines = [ROW.format("fault", "times", "held", "recovery s", "what must hold")]
        for name, row in sorted(self.rows.items()):
            took = "" if row.recovery_s is None else f"{row.recovery_s:.1f}"
            lines.append(ROW.format(name, row.times, row.held, took, row.holds[0]))
            lines += [ROW.format("", "", "", "", more) for more in row.holds[1:]]
            lines += [f"    {nodeid}" for nodeid in (*row.failed, *row.skipped)]
        return lines


class Plugin:
    """Connects a table with pytest."""

    def __init__(self, *, alone: bool) -> None:
        self._table, self._alone = Table(), alone

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Note what each test is about; run no others."""
        marked = []
        for item in items:
            if (mark := item.get_closest_marker("fault")) is not None:
                item.user_properties.append(("fault", mark.args))
                marked.append(item)
        if self._alone:
            config.hook.pytest_deselected(items=[i for i in items if i not in marked])
            items[:] = marked

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take every report."""
        self._table.add(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail where not everything was tried and held."""
        if self._alone and not hasattr(session.config, "workerinput") and not self._table.held:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if self._alone and self._table.rows:
            terminalreporter.section("faults")
            for line in self._table.lines():
                terminalreporter.write_line(line)


def add_option(parser: pytest.Parser) -> None:
    """Add ``--faults``."""
    about = "run the tests marked as faults alone, and print one table of them"
    parser.addoption(OPTION, action="store_true", help=about)


def configure(config: pytest.Config) -> None:
    """Register the marker and the plugin."""
    config.addinivalue_line("markers", "fault(fault, holds): injects a fault; what must hold")
    config.pluginmanager.register(Plugin(alone=config.getoption(OPTION, default=False)))
