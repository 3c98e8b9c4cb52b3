# SPDX-License-Identifier: Apache-2.0
"""``amp-nova record`` as its user sees it; a simulated host stands in for this one."""

import contextlib
import os
import signal
import types

import pytest
import yaml

pytest.importorskip("oslo_config")

from amp_nova.agent.operator import control_socket
from amp_nova.cmd import cli
from amp_nova.exceptions import HypervisorUnavailable
from amp_nova_lab.commands import record
from amp_nova_lab.commands.inputs import load
from amp_nova_lab.host import SimHost
from tests.support.fakehost import Node
from tests.unit.lab.builders import guest, topology
from tests.unit.lab.commands.refusals import refused


class FakeTime:
    """A clock that waiting advances."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def strftime(self, form, _when):
        return "2026-01-01 00:00"

    def gmtime(self):
        return None


class FakeSensor:
    """A simulated host in the place of this one; ``at`` is called with the number of a reading."""

    def __init__(self, clock, guests, coefficient=2.0):
        self.host = SimHost(topology(coefficient=coefficient), guests)
        self._clock, self._began_s = clock, clock.now_s
        self.readings = 0
        self.at = lambda number: None

    def observe(self):
        self.readings += 1
        self.at(self.readings)
        if self._clock.now_s > self._began_s + self.host.now_s:
            self.host.advance(self._clock.now_s - self._began_s)
        return self.host.observe()

    def thread(self, _key):
        return types.SimpleNamespace(last_pcpu=lambda: 1)


@pytest.fixture
def setup(monkeypatch, tmp_path, amp_nova):
    """Runs ``amp-nova record`` without waiting; exit status, output and error."""
    clock = FakeTime()
    sensor = FakeSensor(clock, [guest("a", vcpus=2), guest("b", pref_core="0.5")])
    monkeypatch.setattr(record, "time", clock)
    config = tmp_path / "amp-nova.conf"
    state = tmp_path / "state"
    state.mkdir()

    class Wakeup(record.Wakeup):
        def wait(self, timeout_s):
            clock.now_s += timeout_s
            return self.stopping

    monkeypatch.setattr(record, "Wakeup", Wakeup)
    monkeypatch.setattr(record, "_sensor", lambda conf: made.sensor)

    def run(*arguments, more=""):
        config.write_text(f"[agent]\nstate_path = {state}\n{more}")
        return amp_nova("record", "--config-file", config, *arguments)

    made = types.SimpleNamespace(run=run, sensor=sensor, clock=clock, state=state)
    return made


def test_a_recording_is_a_scenario(setup, tmp_path):
    """What ran for ten minutes, in a file that the simulator reads."""
    path = tmp_path / "host.yaml"

    status, out, err = setup.run("--duration", "10m", "-o", path)

    assert (status, err) == (0, "")
    assert out == f"2 instances over 600 s, written to {path}\n"
    found = load(path)
    assert [g.name for g in found.guests] == ["a", "b"]
    assert found.duration_s == pytest.approx(600.0)
    assert "No agent ran" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644


def test_the_agent_tells_policy_and_speedups(setup, tmp_path):
    """What it knows goes into the file, with the options that were changed."""
    speedup = {"ratio": 1.25, "error": 0.001, "source": "sampling"}
    vcpus = [{"index": 0, "speedup": speedup}, {"index": 1, "speedup": None}]
    status = [{"instance": "a", "vcpus": vcpus}]
    answer = {"status": status, "policy": "acfs"}
    path = tmp_path / "host.yaml"
    more = "policy = acfs\npolicy_parameter = unfairness_factor = 1.2\n"
    more += "smt = ignore\nwriter = libvirt\n"
    with contextlib.closing(control_socket.Control(setup.state, lambda question: answer)):
        assert setup.run("--duration", "5s", "-o", path, more=more)[0] == 0

    found = yaml.safe_load(path.read_text())
    assert found["policy"] == "acfs:unfairness_factor=1.2"
    assert found["agent"] == {"smt": "ignore", "writer": "libvirt"}
    assert found["recorded"]["vms"]["a"]["vcpus"][0]["speedup"] == 1.25
    assert cli.main(["simulate", str(path)]) == 0


def test_ctrl_c_writes_what_there_is(setup, tmp_path):
    """Half of the time is a recording too."""
    path = tmp_path / "host.yaml"
    setup.sensor.at = lambda number: number == 21 and os.kill(os.getpid(), signal.SIGINT)

    status, out, _ = setup.run("--duration", "10m", "-o", path)

    assert status == 0
    assert out.startswith("2 instances over 10 s")
    assert load(path).duration_s == pytest.approx(10.0)


def test_nothing_is_overwritten_unless_told_to(setup, tmp_path):
    """Not even what came while it recorded."""
    path = tmp_path / "host.yaml"
    path.write_text("precious")

    said = refused(setup.run("--duration", "5s", "-o", path))
    assert "exists" in said
    assert "--force" in said
    assert (path.read_text(), setup.sensor.readings) == ("precious", 0)

    path.unlink()
    setup.sensor.at = lambda number: number == 3 and path.write_text("precious")
    assert setup.run("--duration", "5s", "-o", path)[0] == 2
    assert path.read_text() == "precious"

    setup.sensor.at = lambda number: None
    assert setup.run("--duration", "5s", "-o", path, "--force")[0] == 0
    assert load(path).guests


def test_a_gap_does_not_end_it(setup, tmp_path):
    """libvirt restarts; the recording goes on."""

    def at(number):
        if number in (4, 5):
            raise HypervisorUnavailable("libvirt does not answer")

    setup.sensor.at = at
    path = tmp_path / "host.yaml"

    assert setup.run("--duration", "5s", "-o", path)[0] == 0
    assert load(path).duration_s == pytest.approx(5.0)


def test_no_instance_is_no_recording(setup, tmp_path):
    """Exit status 1, and no file."""
    setup.sensor = FakeSensor(setup.clock, [])
    path = tmp_path / "host.yaml"

    status, _, err = setup.run("--duration", "5s", "-o", path)

    assert status == 1
    assert "no instance ran" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["amp-nova.conf", "state"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--duration", "soon"], "'soon' is not a time"),
        (["--duration", "1s"], "'1s' is not a time from 2 s to 31d"),
        (["--duration", "5s", "-o", "/nonexistent/host.yaml"], "cannot be written"),
        (["--duration", "5s", "-o", "/"], "--force"),
        (["--duration", "5s", "-o", "/", "--force"], "it is a directory"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(setup, tmp_path, arguments, said):
    """Before anything is read from the host."""
    if "-o" not in arguments:
        arguments = [*arguments, "-o", tmp_path / "host.yaml"]

    assert said in refused(setup.run(*arguments))
    assert setup.sensor.readings == 0


def test_an_uncalibrated_host_is_refused_at_once(setup, tmp_path):
    """Coefficients cannot be recorded, and without them nothing can be simulated."""
    setup.sensor = FakeSensor(setup.clock, [guest("a")], coefficient=None)

    answer = setup.run("--duration", "5s", "-o", tmp_path / "host.yaml")

    assert "run amp-nova calibrate" in refused(answer)
    assert setup.sensor.readings == 1
    assert not (tmp_path / "host.yaml").exists()


def test_a_host_is_read_as_the_agent_reads_it_and_nothing_is_written(tmp_path, monkeypatch):
    """A vCPU that may run on several core types is asked where it ran last."""
    node = Node(tmp_path, monkeypatch)
    node.start(specs={"amp:pref_core": "0.5"})

    seen = record._observe(node.sensor, frozenset({0, 1, 3}))

    (domain,) = seen.domains
    assert [v.last_pcpu for v in domain.vcpus] == [3, 3]
    assert [p.id for p in seen.topology.pcpus] == [0, 1, 3]
    assert node.kernel.written == []
