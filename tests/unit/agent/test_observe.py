# SPDX-License-Identifier: Apache-2.0
"""Observing before and instead of enforcing: nothing is written, and what was is released."""

import contextlib
import errno
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent.service import Service
from amp_nova.cmd.agent import main as agent_main
from amp_nova.cmd.cli import main
from amp_nova.guard import locks, record
from amp_nova.guard.pauses import Pauses
from amp_nova.host import sensor
from tests.support.fakehost import put, resource
from tests.unit.agent.setups import HALF, NAME

CYCLE_S = 10.0
OBSERVE = {"mode": "observe"}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The sensor's clock, which only ``pass_time`` moves."""
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, monotonic_ns=lambda: round(now.s * 1e9))
    monkeypatch.setattr(sensor, "time", fake)
    return now


def pass_time(setup, clock, ran=1.0, seconds=CYCLE_S):
    """vCPUs that want to run all the time ran for this share of it; others had the pCPU."""
    clock.s += seconds
    for path in (setup.tmp_path / "host/proc").glob("*/task/*/schedstat"):
        run_ns, wait_ns, slices = map(int, path.read_text().split())
        run_ns, wait_ns = run_ns + ran * seconds * 1e9, wait_ns + (1.0 - ran) * seconds * 1e9
        put(path, f"{round(run_ns)} {round(wait_ns)} {slices + 1}")


def cycle(running):
    """One cycle as the service runs it."""
    assert running._try_cycle(None)
    return running.last


def metrics(running, name, **labels):
    """The values of a metric, by the labels that are not given."""
    found = {}
    for family in running.publishers.exporter.collect():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                left = {v for k, v in sample.labels.items() if k not in labels}
                found[" ".join(sorted(left - {NAME, resource(NAME), "5ac0ffee"}))] = sample.value
    return found


def everything(setup):
    """All that an agent could write on the host."""
    host = setup.tmp_path / "host"
    files = {p: p.read_text() for p in (host / "sys").rglob("*") if p.is_file()}
    return files, {t: set(pcpus) for t, pcpus in setup.node.kernel.affinity.items()}


def test_what_enforcement_would_do_is_exported_and_explained(setup, clock):
    """A guest that is always busy and books half a reference core."""
    setup.node.start(specs=HALF, vcpus=1)
    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    for _ in range(6):
        pass_time(setup, clock)
        cycle(running)

    (limit,) = [e.limit.cores for e in running.last.entitlements.values()]
    lasts_s = 6 * CYCLE_S
    would = "amp_instance_would_throttle_seconds_total"
    for bound in ("least", "most"):
        assert metrics(running, would, bound=bound) == pytest.approx(
            {"": (1.0 - limit) * lasts_s}, rel=0.05
        )
    # It ran on pCPU 3, which is fast, and so used 2 reference cores.
    assert metrics(running, "amp_instance_beyond_booking_refcore_seconds_total") == pytest.approx(
        {"": 1.5 * lasts_s}, rel=0.05
    )
    assert metrics(running, "amp_mode_info") == {"observe": 1.0}
    lines = running._answer({"command": "explain", "instance": NAME})["explain"]["because"]
    assert lines[0] == "Bookings are only observed: [agent] mode = observe."
    assert any(line.startswith(f"Enforcement would limit it to {limit:.2%}") for line in lines)
    page = running.publishers.exporter.front().body.decode()
    assert "Bookings are only observed: [agent] mode = observe." in page


def test_what_would_be_defended_is_exported_by_cause(setup, clock):
    """Neighbours leave a busy guest a tenth of its pCPU: it gets 0.2 of the 0.5 that it books."""
    setup.node.start(specs=HALF, vcpus=1)
    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    for _ in range(3):
        pass_time(setup, clock, ran=0.1)
        cycle(running)

    defended = {"contention": 1, "core_type": 0, "frequency": 0, "smt": 0}
    assert metrics(running, "amp_host_undefended_vcpus") == defended
    lost = metrics(running, "amp_instance_shortfall_refcore_seconds_total", cause="contention")
    assert lost == pytest.approx({"": 0.3 * 3 * CYCLE_S}, rel=0.05)


def enforced(setup, **conf):
    """An agent has enforced a booking; returns all that it could write, before and after."""
    setup.node.start(specs=HALF)
    before = everything(setup)
    cycle(Service(setup.conf(**conf)))
    after = everything(setup)
    assert after != before
    return before, after


def test_a_restart_with_observe_releases_what_was_enforced_and_then_writes_nothing(setup, clock):
    """The way back in a configuration management system is to set the option back."""
    before, _ = enforced(setup)

    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    assert everything(setup) == before
    assert not list((setup.state / record.FOLDER).glob("*.json"))
    writes = setup.node.kernel.writes
    for _ in range(3):
        pass_time(setup, clock)
        cycle(running)
    assert setup.node.kernel.writes == writes


@contextlib.contextmanager
def refusing(setup):
    """The kernel refuses to change limits."""
    setup.node.kernel.refuse["cpu.max"] = errno.EIO
    yield
    del setup.node.kernel.refuse["cpu.max"]


def changing(setup):
    """A command is changing limits, and has the cycle lock."""
    return locks.locked(setup.state, locks.CYCLE)


@pytest.mark.parametrize("obstacle", [refusing, changing])
def test_a_release_that_fails_is_tried_again_and_logged_once(setup, clock, caplog, obstacle):
    """Nothing else is written meanwhile."""
    before, _ = enforced(setup)
    running = Service(setup.conf(**OBSERVE))
    with obstacle(setup):
        for _ in range(2):
            pass_time(setup, clock)
            cycle(running)
    assert caplog.text.count("bookings are not released yet; retrying in every cycle") == 1
    assert everything(setup)[0] != before[0]

    pass_time(setup, clock)
    cycle(running)

    assert everything(setup) == before


def test_paused_instances_stay_as_they_are(setup, clock):
    """Until the pause ends."""
    before, after = enforced(setup)
    Pauses(setup.state).pause(resource(NAME), "paused by an operator")
    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    assert everything(setup) == after

    Pauses(setup.state).resume(resource(NAME))
    pass_time(setup, clock)
    cycle(running)

    assert everything(setup) == before


def test_once_says_that_nothing_was_changed(setup, capsys):
    """It prints what it would have changed, and why it did not."""
    setup.node.start(specs=HALF, vcpus=1)
    setup.conf(**OBSERVE)

    assert agent_main(["--once", "--config-file", str(setup.tmp_path / "amp-nova.conf")]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"{NAME} vCPU 0: quota ")
    assert out[-1] == "nothing was changed: [agent] mode = observe"
    assert setup.node.kernel.writes == 0


@pytest.mark.parametrize("words", [[], [NAME, "--all"]])
def test_resume_needs_an_instance_or_all(setup, capsys, words):
    """One of them, in a sentence."""
    setup.conf()
    assert main(["resume", *words, "--config-file", str(setup.tmp_path / "amp-nova.conf")]) == 2
    assert "resume: give either INSTANCE or --all" in capsys.readouterr().err


def test_status_says_that_bookings_are_only_observed(setup, clock, capsys, monkeypatch):
    """Below the table."""
    setup.node.start(specs=HALF)
    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    monkeypatch.setattr(
        "amp_nova.agent.operator.control_socket.query", lambda _path, asked: running._answer(asked)
    )
    assert main(["status", "--config-file", str(setup.tmp_path / "amp-nova.conf")]) == 0
    assert "bookings are only observed: [agent] mode = observe" in capsys.readouterr().out
