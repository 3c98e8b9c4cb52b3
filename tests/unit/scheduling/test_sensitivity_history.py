"""What is remembered of how much instances gain from fast cores."""

import pytest

from amp_nova.scheduling import sensitivity_history
from amp_nova.scheduling.sensitivity_history import SensitivityHistory
from amp_nova.wire.host_report import ReportedInstance, ReportedVcpu, Speedup
from tests.host_reports import host_report


def measured(history, *speedups, image="image"):
    """Learn from instances called 0, 1, ... of one flavor; the default host's coefficient is 2."""
    instances = [
        ReportedInstance(
            str(n), (ReportedVcpu(0, speedup=s and Speedup(s)),), flavor="f", image=image
        )
        for n, s in enumerate(speedups)
    ]
    history.learn(host_report(*instances))


def test_an_instance_is_known_by_its_own_measurement():
    """Otherwise by the median of its flavor and image; without one, nothing is known."""
    history = SensitivityHistory()
    measured(history, 2.0, 1.0, 1.2, None)

    assert history.sensitivity("0", "f", "image") == 1.0
    assert history.sensitivity("3", "f", "image") == pytest.approx(0.2)
    assert history.sensitivity("3", "f", "another") is None
    assert history.sensitivity("3", "f", "") is None


def test_a_profile_keeps_the_latest_instances(monkeypatch):
    """Old measurements are dropped, also those of single instances."""
    monkeypatch.setattr(sensitivity_history, "PROFILE_INSTANCES_MAX", 2)
    monkeypatch.setattr(sensitivity_history, "INSTANCES_MAX", 2)
    history = SensitivityHistory()
    measured(history, 2.0, 1.0, 1.0)

    assert history.sensitivity("new", "f", "image") == 0.0
    assert history.sensitivity("0", "f", "other") is None
