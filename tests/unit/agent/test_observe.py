"""Observing before and instead of enforcing: nothing is written; enforcement undoes itself."""

import contextlib
import errno
import itertools
import random
from types import SimpleNamespace

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from amp_nova.agent.loop import Loop
from amp_nova.agent.service import Service
from amp_nova.cmd.agent import main as agent_main
from amp_nova.cmd.cli import main
from amp_nova.guard import locks, record
from amp_nova.guard.__main__ import Watch
from amp_nova.guard.pauses import HOST, Pauses
from amp_nova.host import sensor
from amp_nova.model.allocation import Failure
from amp_nova_lab.host import SimHost
from tests.support.fakehost import put, resource
from tests.unit.agent.setups import HALF, NAME
from tests.unit.lab.builders import guest, topology

CYCLE_S = 10.0
BURNS = {"undo_burn_rate": 14.4}
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


@pytest.mark.parametrize("seed", range(2))
def test_no_write_is_issued_whatever_happens(setup, clock, seed):
    """Instances come, go and restart, others change limits, threads go, libvirt forgets, pauses."""
    chance, node = random.Random(seed), setup.node
    specs = [None, HALF, {"amp:pref_core": "5"}, {"amp:ips": "1G"}, {"amp:pref_core": "junk"}]
    specs += [
        {"amp:core_type": "slow"},
        {**HALF, "amp:burst_s": "2"},
        {**HALF, "amp:limit": "soft"},
    ]
    running = Service(setup.conf(policy="acfs", **OBSERVE))
    here, pids = {}, itertools.count(5000)
    for _ in range(30):
        event = chance.randrange(7)
        if event < 3 and len(here) < 6:
            name = f"vm-{next(pids)}"
            here[name] = node.host.start(name, 2, int(name[3:]))
            node.libvirt.define(name, vcpus=2, specs=chance.choice(specs))
        elif event == 3 and here:
            name = chance.choice(sorted(here))
            node.host.stop(name, here.pop(name))
            node.libvirt.forget(name)
        elif event == 4 and here:
            node.host.set_limit(30000, 100000, chance.choice(sorted(here)))
        elif event == 5 and here:
            Pauses(setup.state).pause(resource(chance.choice(sorted(here))), "paused", 0.01)
        elif event == 6:
            running = Service(setup.conf(policy="acfs", **OBSERVE))
        before = everything(setup)
        pass_time(setup, clock, chance.random())
        cycle(running)
        running.loop.tick()
        running.loop.finish()
        assert everything(setup) == before
    assert (node.kernel.writes, node.kernel.written) == (0, [])
    assert metrics(running, "amp_writes_total") == {"": 0.0}
    assert not list((setup.state / record.FOLDER).glob("*"))


def test_the_fast_loop_ends_when_bookings_are_only_observed():
    """Limits that could not be released yet stay as they are."""
    host = SimHost(topology(), [guest(ips="0.8G")])
    loop = Loop(host, host)
    loop.cycle()
    assert loop.fast.active

    loop.observe(Failure("undone", "the service level burned too fast"))
    host.advance(1.0)
    loop.cycle()

    assert not loop.fast.active


def test_what_enforcement_would_do_is_exported_and_explained(setup, clock):
    """A guest that is always busy and books half a reference core."""
    setup.node.start(specs=HALF, vcpus=1)
    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    for _ in range(6):
        pass_time(setup, clock)
        cycle(running)

    (limit,) = [e.quota.bandwidth.cores for e in running.last.entitlements.values()]
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


def burnt(setup, clock, **conf):
    """An agent that enforces bookings, which are missed until their budget burns too fast.

    Returns the agent as of the cycle in which the burn rate was exceeded, and the host before it.
    """
    setup.node.start(specs=HALF)
    before = everything(setup)
    running = Service(setup.conf(**{**BURNS, **conf}))
    cycle(running)
    assert everything(setup) != before
    for _ in range(120):
        pass_time(setup, clock, ran=0.05)
        if cycle(running).totals.service.burns(14.4):
            return running, before
    raise AssertionError(f"it never burnt: {running.last.totals.service.burn_rates}")


def test_enforcement_undoes_itself_within_two_cycles(setup, clock, caplog):
    """Everything is as it was found; log, status, page and metrics say so and why."""
    running, before = burnt(setup, clock)
    pass_time(setup, clock)
    second = cycle(running)

    assert everything(setup) == before
    assert second.outcome.mode == "undone"
    assert "bookings will be released: the burn rate of the service level was" in caplog.text
    assert metrics(running, "amp_mode_info") == {"undone": 1.0}
    status = running._answer({"command": "status"})
    assert "above [agent] undo_burn_rate = 14.4; 'amp-nova resume --all'" in status["observing"]
    page = running.publishers.exporter.front().body.decode()
    assert "Bookings are only observed: the burn rate of the service level was" in page
    assert not list((setup.state / record.FOLDER).glob("*.json"))


def test_it_observes_until_the_operator_resumes_it(setup, clock, capsys):
    """However well guests are served, whatever starts, and across restarts of the agent."""
    running, _ = burnt(setup, clock)
    pass_time(setup, clock)
    cycle(running)
    writes = setup.node.kernel.writes
    for restarted in (False, True):
        running = Service(setup.conf(**BURNS)) if restarted else running
        for _ in range(10):
            pass_time(setup, clock)
            assert cycle(running).outcome.mode == "undone"
    setup.node.start("new", pid=4100, specs=HALF)
    pass_time(setup, clock)
    cycle(running)
    assert setup.node.kernel.writes == writes

    path = str(setup.tmp_path / "amp-nova.conf")
    assert main(["resume", "--all", "--config-file", path]) == 0
    assert capsys.readouterr().out == "every instance is managed again\n"
    pass_time(setup, clock)

    assert cycle(running).outcome.mode == "enforce"
    assert [setup.node.host.limit(n).split()[0] for n in (NAME, "new")] != ["max", "max"]
    # The minutes before do not undo it again at once.
    pass_time(setup, clock)
    assert cycle(running).outcome.mode == "enforce"
    assert main(["resume", "--all", "--config-file", path]) == 1
    assert "nothing was paused or released on this host" in capsys.readouterr().err


def test_without_the_option_nothing_is_undone(setup, clock):
    """It is 0 by default. An agent that enforces exports nothing of what it would throttle."""
    running, before = burnt(setup, clock, undo_burn_rate=0)
    for _ in range(3):
        pass_time(setup, clock, ran=0.05)
        assert cycle(running).outcome.mode == "enforce"
    assert everything(setup) != before
    for name in ("would_throttle_seconds_total", "beyond_booking_refcore_seconds_total"):
        assert metrics(running, f"amp_instance_{name}") == {}
    assert metrics(running, "amp_host_undefended_vcpus") == {}
    assert metrics(running, "amp_mode_info") == {"enforce": 1.0}


@contextlib.contextmanager
def refusing(setup):
    """The kernel refuses to change limits."""
    setup.node.kernel.refuse["cpu.max"] = errno.EIO
    yield
    del setup.node.kernel.refuse["cpu.max"]


def changing(setup):
    """A command is changing limits, and has the cycle lock."""
    return locks.locked(setup.state, locks.CYCLE)


@pytest.mark.parametrize(
    ("obstacle", "restarted"), [(refusing, True), (changing, False)], ids=["refusing", "changing"]
)
def test_an_undo_that_fails_is_tried_again_and_logged_once(
    setup, clock, caplog, obstacle, restarted
):
    """Nothing else is written meanwhile. The decision is written first, for the next agent, too."""
    running, before = burnt(setup, clock)
    assert HOST in setup.paused()
    with obstacle(setup):
        for _ in range(2):
            pass_time(setup, clock)
            assert cycle(running).outcome.mode == "undone"
    assert caplog.text.count("bookings are not released yet; retrying in every cycle") == 1
    assert everything(setup)[0] != before[0]

    pass_time(setup, clock)
    cycle(Service(setup.conf(**BURNS)) if restarted else running)

    assert everything(setup) == before


def test_the_guard_enforces_nothing_on_a_host_that_is_released(setup, clock):
    """Even if the agent is killed before it has released everything; after a resume it does."""
    burnt(setup, clock)
    guard = Watch(setup.state, str(setup.tmp_path / "host/proc"))
    setup.node.host.set_limit("max", 100000)
    released = everything(setup)

    guard.poll()
    assert everything(setup) == released

    Pauses(setup.state).resume(HOST)
    guard.poll()
    assert everything(setup) != released


def test_paused_instances_stay_as_they_are(setup, clock):
    """The operator's pause comes before the agent's own undoing, until it ends."""
    running, before = burnt(setup, clock)
    Pauses(setup.state).pause(resource(NAME), "paused by an operator")
    there = everything(setup)
    pass_time(setup, clock)
    cycle(running)
    assert everything(setup) == there

    Pauses(setup.state).resume(resource(NAME))
    pass_time(setup, clock)
    cycle(running)

    assert everything(setup) == before


def test_a_restart_with_observe_releases_what_was_enforced_and_then_writes_nothing(setup, clock):
    """The way back in a configuration management system is to set the option back."""
    setup.node.start(specs=HALF)
    before = everything(setup)
    cycle(Service(setup.conf()))
    assert everything(setup) != before

    running = Service(setup.conf(**OBSERVE))
    cycle(running)
    assert everything(setup) == before
    writes = setup.node.kernel.writes
    for _ in range(3):
        pass_time(setup, clock)
        cycle(running)
    assert setup.node.kernel.writes == writes


def test_io_threads_that_were_moved_go_home(setup, clock, monkeypatch):
    """They are released like everything else, and not moved while bookings are only observed."""
    running, _ = burnt(setup, clock, io_work="slow")
    tid = setup.io_thread(monkeypatch)
    setup.node.kernel.affinity[tid] = {0, 1}
    (setup.state / "io.moved").touch()
    pass_time(setup, clock)
    cycle(running)

    assert setup.node.kernel.affinity[tid] == {0, 1, 2, 3}
    assert not (setup.state / "io.moved").exists()


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
