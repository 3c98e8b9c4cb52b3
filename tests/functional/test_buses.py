# SPDX-License-Identifier: Apache-2.0
"""Message buses of a scheduler worker: its options, its process, and faults of a broker."""

import json
import os
import subprocess
import sys

import pytest
from oslo_config import cfg

from amp_nova.nova_plugins import options, report_server
from amp_nova.nova_plugins.filters import AmpCapacityFilter
from tests.support.broker import PROGRAM

SECONDS = os.environ.get("AMP_NOVA_SECONDS", "2")
"""Each fault is there twice for so long."""
FAULTS = ("vhost", "killed", "password", "disk")[: None if "AMP_NOVA_SECONDS" in os.environ else 2]
"""All, or one that the broker refuses and one with no broker: their tools take much CPU time."""
RECOVERY_S = 5.0 if "AMP_NOVA_SECONDS" in os.environ else 15.0
"""Measured on a machine that does nothing else, as promised; in CI, other tests run meanwhile."""


def run(module: str, *words: str, timeout_s: float = 240.0) -> str:
    """Run a module of these in a process of its own; what it printed."""
    command = (sys.executable, "-W", "ignore", "-m", f"tests.functional.{module}", *words)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert ended.returncode == 0, ended.stderr[-10_000:]
    return ended.stdout


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("stale_after_s = 3m", "could not convert string to float: '3m'"),
        ("stale_after_s = 0", "Should be greater than or equal to 1"),
        (
            "stale_report = sometimes",
            "[refuse, last, ignore], but found 'sometimes'",
        ),
        ("transport_url = rabbit//x", "No scheme specified"),
        ("transport_url = foo://", "No 'oslo.messaging.drivers' driver found, looking for 'foo'"),
        (
            "transport_url = rabbit://u:p@host:amqp/",
            "invalid literal for int()",
        ),
        ("transport_url = rabbit://host/?nosuch=1", "no such option nosuch"),
        ("amp_efficiency_weight_multiplier = much", "could not convert string to float: 'much'"),
        ("amp_scalability_weight_multiplier = ,", "could not convert string to float: ','"),
    ],
)
def test_an_option_that_is_not_valid(tmp_path, monkeypatch, line, why):
    """The service does not start, and says why in one sentence."""
    file = tmp_path / "nova.conf"
    file.write_text(f"[amp_scheduler]\n{line}\n")
    conf = options.register(cfg.ConfigOpts())
    conf([], default_config_files=[str(file)], default_config_dirs=[])
    monkeypatch.setattr(report_server, "CONF", conf)
    monkeypatch.setattr(report_server, "_shared", None)

    with pytest.raises(ValueError, match=rf"^\[amp_scheduler\] {line.split()[0]}: .*") as raised:
        AmpCapacityFilter()

    assert why in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "u:p" not in str(raised.value)


@pytest.mark.parametrize("how", ["fork", "spawn", "later"])
def test_a_process_of_a_worker(how):
    """Whatever process the filter was loaded in, the first request starts what a worker needs."""
    run("worker_process", how)


@pytest.mark.skipif(not PROGRAM.exists(), reason="rabbitmq-server is not installed")
@pytest.mark.timeout(600 + 4 * float(SECONDS))
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bus_that_is_away(fault, record_property):
    """Nothing grows meanwhile, no request waits for long, and everything works soon afterwards."""
    seen = json.loads(run("bus_faults", fault, SECONDS, timeout_s=600 + 4 * float(SECONDS)))

    record_property("figures", seen)
    for figures in (*seen["broken at the start"], *seen["broken"], seen["after"]):
        for what, before in seen["before"].items():
            assert figures[what] <= before + 2, (what, seen)  # two connections may be in progress
    for recovered in (seen["after it"], seen["after that"]):
        assert recovered["recovery_s"] < RECOVERY_S
    assert seen["longest_s"] < 13.0  # ECHO_S, CONTENDED_S
