# SPDX-License-Identifier: Apache-2.0
"""How the agent's parts are built from the configuration."""

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova import plugins
from amp_nova.agent import settings, wiring
from amp_nova.agent.publish.host_info import NOT_CALIBRATED
from amp_nova.exceptions import AmpError, ConfigInvalid
from amp_nova.hardware.calibration import Estimate
from amp_nova.host.calibration import provenance
from tests.support import reports
from tests.support.fakehost import put


def test_configured_bookings_are_read():
    """A pattern, then extra specs."""
    found = wiring.fallbacks(["web-* amp:pref_core=0.5 amp:limit=hard", "* amp:ips.1=2G"])

    assert [(f.pattern, f.specs) for f in found] == [
        ("web-*", {"amp:pref_core": "0.5", "amp:limit": "hard"}),
        ("*", {"amp:ips.1": "2G"}),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "it names no extra spec"),
        ("web-* amp:pref_core", "amp:pref_core='' is not allowed"),
        ("web-* hw:x=1", "only amp:* keys may be given"),
        ("web-* amp:pref_core=1 quota:cpu_quota=1", "would both set the CPU quota"),
        ("amp:pref_core=1", "it names no extra spec"),
    ],
)
def test_bad_booking_line_is_one_sentence(line, reason):
    """The line, what is wrong with it, and how to write it."""
    with pytest.raises(ConfigInvalid) as caught:
        wiring.fallbacks(["* amp:weight=2", line])

    assert f"[agent] booking = {line}: " in str(caught.value)
    assert reason in str(caught.value)
    assert str(caught.value).endswith("; write PATTERN amp:KEY=VALUE...")


def test_settings_are_the_configured_ones(setup):
    """What an operator configures reaches the loop."""
    conf = setup.conf(reserve_ratio=0.1, affinity="pcpu", cycle_s=0.5)

    found = settings.read(conf, dry_run=True)

    assert (found.terms.reserve_ratio, found.terms.one_pcpu) == (0.1, True)
    assert (found.terms.cycle_s, found.dry_run) == (0.5, True)


@pytest.mark.parametrize(
    ("parameter", "match"),
    [
        ("swap_s", "policy_parameter = swap_s: write KEY=VALUE"),
        ("swap_s=1\npolicy_parameter = swap_s=2", "each key once"),
        ("unfairness_factor=0.5", "give a number of at least 1"),
    ],
)
def test_invalid_parameter_of_a_policy_is_refused(setup, parameter, match):
    """One sentence, with the values that are possible."""
    with pytest.raises(AmpError, match=match):
        wiring.policy(setup.conf(policy="acfs", policy_parameter=parameter))


def test_calibration_has_an_age_and_errors_where_it_is_in_use(setup, monkeypatch):
    """A calibration that the topology rests on has an age; one that is not used has none."""
    types = [SimpleNamespace(name="fast", coefficient=Estimate(2.0, 1.9, 2.04, 0.95))]
    model = provenance.machine()["cpu_model"]
    made = SimpleNamespace(date="1970-01-01T00:01:17+00:00", cpu_model=model)
    found = SimpleNamespace(provenance=made, core_types=types)
    monkeypatch.setattr(wiring.file, "read", lambda path: (found,))
    conf = setup.conf()

    used = wiring.calibrated(conf, reports.topology())
    assert (used.made_s, used.errors) == (77.0, {"fast": pytest.approx(0.07)})
    assert wiring.calibrated(conf, setup.node.topology) == NOT_CALIBRATED
    monkeypatch.undo()
    conf.set_override("calibration_file", str(setup.tmp_path / "gone.json"), "topology")
    assert wiring.calibrated(conf, reports.topology()) == NOT_CALIBRATED  # its coefficients stay


def test_what_will_count_is_known_without_a_guest(setup, tmp_path, monkeypatch):
    """An empty host offers bookings in Ips where its guests will be counted."""
    conf = setup.conf()
    conf.set_override("root", str(tmp_path), "topology")
    assert wiring.expected_source(conf) == "tcg"
    with monkeypatch.context() as patch:
        patch.setattr(plugins, "_factory", lambda *_: None)  # without the simulator
        assert wiring.expected_source(conf) is None
    put(tmp_path / "sys/devices/virtual/misc/kvm/dev", "10:232")
    assert wiring.expected_source(conf) is None
    (tmp_path / "sys/bus/event_source/devices/cpu").mkdir(parents=True)
    assert wiring.expected_source(conf) == "perf"
    put(tmp_path / "sys/module/kvm_amd/parameters/enable_mediated_pmu", "Y")
    assert wiring.expected_source(conf) is None


def test_the_libvirt_writer_decides_by_what_libvirt_can(setup):
    """One limit per instance, samples less often than writes are slow, values in definitions."""
    conf = setup.conf(writer="libvirt")

    found = settings.read(conf)

    assert (found.terms.one_limit, found.terms.tick_s) == (True, 0.5)
    assert wiring.make_writer(conf, setup.node.sensor).in_definition
    conf = setup.conf()
    assert settings.read(conf).terms.tick_s == 0.05
    assert not wiring.make_writer(conf, setup.node.sensor).in_definition


def test_a_state_folder_that_cannot_be_read_is_one_sentence(setup):
    """As for a dry run by somebody who has no right to."""
    conf = setup.conf()
    Path(conf.agent.state_path).write_text("not a folder")

    with pytest.raises(
        ConfigInvalid, match=r"state_path .* cannot be read \(Not a directory\): run"
    ):
        wiring.make_writer(conf, wiring.make_sensor(conf))
