# SPDX-License-Identifier: Apache-2.0
"""``amp-nova demo`` as its user sees it."""

import json
import re
import signal
import subprocess
import sys
import urllib.request

import pytest

from amp_nova_lab.commands import demo
from amp_nova_lab.two_hosts import Verdict
from tests.support.programs import until
from tests.unit.lab.commands.refusals import refused

pytestmark = pytest.mark.usefixtures("_at_once")
PROGRAM = "import sys; from amp_nova.cmd.cli import main; sys.exit(main())"


@pytest.fixture
def _at_once(monkeypatch):
    """Simulated time does not keep pace with real time."""
    monkeypatch.setattr(demo.time, "sleep", lambda seconds: None)


def test_the_verdict(amp_nova, monkeypatch):
    """An error is rounded up; one second outside the tolerance is enough for exit status 1."""
    assert "within 0.3 %" in str(Verdict(0.0021, 2.0, 0.5, 4.0, 2))

    missed = Verdict(0.042, 2.0, 0.5, 4.0, 2)
    monkeypatch.setattr("amp_nova_lab.two_hosts.Show.verdict", lambda self: missed)
    status, out, _ = amp_nova("demo")
    assert (status, "one was missed by 4.2 %" in out) == (1, True)


def test_it_ends_with_a_verdict(amp_nova):
    """Without a terminal: one table per act, no escape codes, one last sentence."""
    status, out, err = amp_nova("demo")

    assert (status, err) == (0, "")
    assert "\033" not in out
    assert out.count("| with amp-nova ") == 4
    last = out.splitlines()[-1]
    assert last.startswith("With amp-nova every booking was delivered within")
    assert "2.0 times as fast on a fast core" in last


def test_the_same_for_programs(amp_nova):
    """JSON has the verdict, its figures, and every vCPU.

    In the end web-1 is on a slow core and db/1 on a fast one.
    """
    status, out, _ = amp_nova("demo", "--format", "json")
    found = json.loads(out)

    assert (status, found["delivered"], found["moves"]) == (0, True, 2)
    assert found["error_ratio"] <= 1e-6
    moved = [found["vcpus"][vcpu]["with"]["core_type"] for vcpu in ("web-1/0", "db/1")]
    assert moved == ["slow", "fast"]
    assert found["vcpus"]["noise/0"]["with"]["booked_refcores"] is None


def test_it_keeps_pace_with_real_time_and_serves_a_page_and_metrics():
    """While it runs, the URL that it prints first is the agent's page, with metrics beside it."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, "demo", "--duration", "4"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = iter(process.stdout)
        address = re.search(r"http://\S+", next(lines))[0]
        next(line for line in lines if line.startswith("web-1/0"))
        with urllib.request.urlopen(address, timeout=5) as answer:
            page, policy = answer.read().decode(), answer.headers["Content-Security-Policy"]
        with urllib.request.urlopen(f"{address}metrics", timeout=5) as answer:
            metrics = answer.read().decode()
        remaining = list(lines)
    finally:
        process.kill()
        process.wait()

    assert "amp-nova on the demo host" in page
    assert "web-1/0" in page
    assert "default-src 'none'" in policy
    assert 'amp_vcpu_booked_refcores{domain="web-1"' in metrics
    assert 'amp_vcpu_quota_cores{domain="web-1"' in metrics
    assert remaining[-1].startswith("With amp-nova")


def test_it_serves_its_host_until_it_is_interrupted():
    """After the verdict, the last act goes on; Ctrl-C ends it with the verdict's exit status."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, "demo", "--duration", "4", "--serve"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def cpu_s() -> float:
        with urllib.request.urlopen(f"{address}metrics", timeout=5) as answer:
            used = re.findall(r"^amp_host_cpu_seconds_total\S+ (\S+)", answer.read().decode(), re.M)
        return sum(map(float, used))

    try:
        said = next(line for line in process.stderr if "Until Ctrl-C" in line)
        address = re.search(r"http://\S+", said)[0]
        before = cpu_s()
        until(lambda: cpu_s() > before, what="another second of the last act", timeout_s=30)
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[1]
    finally:
        process.kill()
        process.wait()

    assert (process.returncode, rest) == (0, "")


def test_bad_input_is_refused_in_a_sentence(amp_nova):
    """It says what is allowed."""
    said = refused(amp_nova("demo", "--duration", "3"))
    assert "'3' is not a whole number from 4 to 86400" in said


def test_on_a_terminal_the_table_is_redrawn(amp_nova, monkeypatch):
    """Every second replaces the one before."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")

    status, out, _ = amp_nova("demo", "--duration", "5")

    assert status == 0
    assert out.count("s of 4:") == 4
    assert len(re.findall("\033\\[\\d+A\r\033\\[J", out)) == 3  # each over the one before


def test_a_plot_has_a_line_for_every_booked_vcpu(amp_nova, tmp_path):
    """The figure of the README."""
    pytest.importorskip("matplotlib", reason="the extra [plot] is not installed")
    path = tmp_path / "demo.svg"

    assert amp_nova("demo", "--duration", "8", "--plot", path)[0] == 0
    text = path.read_text()
    assert all(f"<!-- {name} -->" in text for name in ("web-1/0", "db/1", "batch/0", "etl/0"))
