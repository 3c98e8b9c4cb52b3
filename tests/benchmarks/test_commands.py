"""Seconds from typing a command to its end, medians; the target is 0.25 s.

Run it with ``pytest tests/benchmarks/test_commands.py -s``. It prints times, never fails on them.
Beside them stand the same commands of the tree before commands were imported one by one, on two
cores of a cloud machine, and an interpreter that does nothing.
"""

import statistics
import subprocess
import sys
import time

import pytest

from amp_nova.agent.operator import control_socket, status
from tests import reports
from tests.benchmarks.scale import scaled

RUNS = scaled(11, 1)
BEFORE_S = {"--help": 0.31, "flavor check amp:pref_core=0.5": 0.32, "status": 0.32}
"""Medians of the tree that imported every command at once."""
INSTANCES = 20


@pytest.fixture
def config(tmp_path):
    """The configuration of an agent, played by the test, with 20 instances."""
    cycle = reports.cycle(
        *(reports.instance(reports.booked(), name=f"instance-{n:08}") for n in range(INSTANCES))
    )
    server = control_socket.Control(tmp_path, lambda _question: {"status": status.status(cycle)})
    path = tmp_path / "amp-nova.conf"
    path.write_text(f"[agent]\nstate_path = {tmp_path}\n")
    yield path
    server.close()


def seconds(*words):
    """The wall time of each run of a program, in seconds."""
    found = []
    for _ in range(RUNS):
        start_s = time.monotonic()
        subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
        found.append(time.monotonic() - start_s)
    return found


def test_time_of_quick_commands(config):
    """Prints a line for each command: median, least and most of now, and the median of before."""
    program = "import sys; from amp_nova.cmd.cli import main; sys.exit(main())"
    print(f"\n{'command':32} {'median s':>8} {'min':>6} {'max':>6} {'before':>7}")
    for command in [None, *BEFORE_S]:
        words = () if command is None else command.split()
        options = ["--config-file", str(config)] if command == "status" else []
        code = "pass" if command is None else program
        found = seconds(sys.executable, "-c", code, *words, *options)
        before = "" if command is None else f"{BEFORE_S[command]:.2f}"
        print(
            f"{command or 'python -c pass':32} {statistics.median(found):8.3f} {min(found):6.3f} "
            f"{max(found):6.3f} {before:>7}"
        )
