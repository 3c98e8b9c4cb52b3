# SPDX-License-Identifier: Apache-2.0
"""The agent as a process of its own, as systemd sees it: real sockets, signals and descriptors."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed")

from tests.support import machines, trees
from tests.unit.agent.test_systemd import Listener

CODE = "import sys; from amp_nova.cmd.agent import main; sys.exit(main(sys.argv[1:]))"
PATIENCE_S = 60


class Agent:
    """One agent over libvirt's test driver, with a notification socket."""

    def __init__(self, tmp_path):
        self.folder = tmp_path
        self.machine = trees.write(tmp_path / "machine", machines.intel_hybrid(pmus=True))
        self.notified = Listener(str(tmp_path / "notify"))
        self.process = None

    def configure(self, exporter="port = 0", topology="calibration_file =", **agent):
        agent = {
            "state_path": self.folder / "state",
            "libvirt_uri": "test:///default",
            "cycle_s": 0.1,
            **agent,
        }
        lines = [f"{key} = {value}" for key, value in agent.items()]
        text = "\n".join(["[agent]", *lines, "[exporter]", exporter, "[topology]", topology])
        (self.folder / "amp-nova.conf").write_text(f"{text}\nroot = {self.machine}\n")

    def start(self, code=CODE):
        environ = {**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "--config-file", str(self.folder / "amp-nova.conf")],
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("wb"),
        )

    @property
    def log(self):
        return (self.folder / "log").read_text()

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"it ended: {self.log}"
            assert time.monotonic() < end, f"{what} did not happen: {self.log}"
            time.sleep(0.02)

    def until_notified(self, *lines):
        """Wait until one message to systemd has these lines."""
        self.until(
            lambda: any(set(lines) <= set(message) for message in self.notified.all()),
            f"message {lines}",
        )

    def port(self):
        self.until(lambda: "metrics at /metrics" in self.log, "serving")
        return int(self.log.rpartition("/, metrics at")[0].rpartition(":")[2])

    def metrics(self):
        url = f"http://127.0.0.1:{self.port()}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def agent(tmp_path):
    found = Agent(tmp_path)
    yield found
    if found.process is not None and found.process.poll() is None:
        found.process.send_signal(signal.SIGCONT)
        found.process.kill()
        found.process.wait()
    found.notified.socket.close()


def test_systemd_is_notified_from_start_to_end(agent):
    """Ready after the first cycle, alive after every cycle, and that it ends on purpose."""
    agent.configure()
    agent.start()

    agent.until_notified("READY=1", "WATCHDOG=1", "STATUS=1 instances")
    agent.until_notified("WATCHDOG=1", "STATUS=1 instances")
    assert agent.stop() == 0
    assert ["STOPPING=1"] in agent.notified.all()
    assert "stopping on signal 15; limits stay in force" in agent.log


def test_sighup_reads_again_what_may_change(agent):
    """As the sample says of options; a file that cannot be read changes nothing."""
    agent.configure()
    agent.start()
    agent.until_notified("READY=1")
    file = agent.folder / "amp-nova.conf"
    right = file.read_text()

    file.write_text("[agent\n")
    agent.process.send_signal(signal.SIGHUP)
    agent.until(lambda: "the configuration cannot be read again: " in agent.log, "an error")
    file.write_text(f"[DEFAULT]\ndebug = true\n{right}")
    agent.process.send_signal(signal.SIGHUP)

    agent.until(lambda: " DEBUG " in agent.log, "debug logging")
    file.write_text(f"{right}[agent]\nbooking = * amp:pref_core=lots\n")
    agent.process.send_signal(signal.SIGHUP)
    agent.until(lambda: "[agent] booking = * amp:pref_core=lots: " in agent.log, "an error")
    agent.notified.all()
    agent.until_notified("WATCHDOG=1", "STATUS=1 instances")


@pytest.mark.fault("agent stopped (SIGSTOP)", "the watchdog is not fed, so systemd restarts it")
def test_a_stopped_agent_does_not_feed_the_watchdog(agent):
    """Here by SIGSTOP; systemd then ends it. It goes on if it is continued before."""
    agent.configure()
    agent.start()
    agent.until_notified("WATCHDOG=1")

    agent.process.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    agent.notified.all()
    time.sleep(0.5)
    assert agent.notified.all() == []
    agent.process.send_signal(signal.SIGCONT)
    agent.until_notified("WATCHDOG=1")


def test_the_watchdogs_signal_leaves_the_stacks(agent):
    """systemd sends SIGABRT; the journal then says where every thread was."""
    agent.configure()
    agent.start()
    agent.until_notified("READY=1")

    agent.process.send_signal(signal.SIGABRT)

    assert agent.process.wait(PATIENCE_S) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in agent.log
    assert "in _cycles" in agent.log


@pytest.mark.fault("every cycle fails", "the watchdog is not fed, so systemd restarts it")
def test_a_failing_cycle_does_not_feed_the_watchdog(agent):
    """A fault that persists is systemd's to end: it restarts the agent."""
    agent.configure()
    agent.start(
        "from amp_nova.agent.loop import Loop\nLoop.cycle = lambda self: {}['a fault']\n" + CODE
    )
    agent.until(lambda: agent.log.count("a control cycle failed") >= 3, "three cycles")

    assert not any("WATCHDOG=1" in message for message in agent.notified.all())
    assert agent.stop() == 0


@pytest.mark.fault("port in use", "only the metrics are missing")
def test_a_port_in_use_costs_only_the_metrics(agent):
    """Cycles run; the metrics are served once the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        agent.configure(exporter=f"port = {port}")
        agent.start()
        agent.until_notified("READY=1", "WATCHDOG=1")
        said = f"no metrics: cannot serve metrics on 127.0.0.1:{port} (Address already in use)"
        agent.until(lambda: said in agent.log, "the message")

    assert "amp_cycle_last_success_timestamp_seconds" in agent.metrics()
    assert agent.log.count("cannot serve metrics") == 1
    assert agent.stop() == 0


@pytest.mark.fault("half-written calibration", "the agent waits for a whole one")
def test_a_half_written_calibration_is_read_again(agent):
    """The agent starts once the file is whole; systemd sees what it waits for."""
    path = agent.folder / "calibration.json"
    path.write_text('{"schema": ')
    agent.configure(topology=f"calibration_file = {path}")
    agent.start()

    agent.until(lambda: f"{path} is damaged" in agent.log, "the message about the file")
    agent.until_notified("READY=1", "WATCHDOG=1")
    path.unlink()
    agent.until_notified("STATUS=1 instances")
    assert agent.log.count("is damaged") == 1
    assert agent.stop() == 0


def test_a_state_directory_that_others_can_change_is_refused(agent):
    """What an agent kept there decides what the next one does."""
    (agent.folder / "state").mkdir()
    (agent.folder / "state").chmod(0o777)
    agent.configure()
    agent.start()

    assert agent.process.wait(PATIENCE_S) == 1
    assert "[agent] state_path: " in agent.log
    assert "can be changed by others (mode 0777): run chmod go-w" in agent.log


@pytest.mark.fault("libvirtd is down at the start", "the agent waits for it")
def test_libvirt_that_is_down_is_waited_for(agent):
    """The watchdog is fed meanwhile: restarting the agent would not help."""
    agent.configure(libvirt_uri="qemu+unix:///system?socket=/no/such")
    agent.start()

    agent.until_notified("WATCHDOG=1", "STATUS=waiting for libvirt")
    assert "amp_hypervisor_up 0.0" in agent.metrics()
    assert agent.log.count("; retrying: ") == 1
    assert agent.stop() == 0


@pytest.mark.fault("libvirtd accepts and never answers", "each cycle ends in time")
def test_a_libvirtd_that_hangs_leaves_the_agent_alive(agent):
    """A socket that accepts and never answers: each cycle ends in time, and SIGTERM works."""
    path = agent.folder / "libvirt-sock"
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(path))
        hung.listen()
        uri = f"qemu+unix:///system?socket={path}"
        agent.configure(libvirt_uri=uri)
        agent.start(
            "from functools import partial\nfrom amp_nova.agent import wiring\n"
            "wiring.Hypervisor = partial(wiring.Hypervisor, timeout_s=0.5)\n" + CODE
        )
        agent.until_notified("WATCHDOG=1", "STATUS=waiting for libvirt")
        assert "libvirt did not answer within 0.5 s" in agent.log
        assert agent.stop() == 0


def test_a_configuration_that_cannot_be_used_is_the_only_status_2(agent):
    """systemd does not start the agent again then (RestartPreventExitStatus=2)."""
    text = "[exporter]\ncert_file = /no/such.pem\nkey_file = /no/such.pem\n"
    (agent.folder / "amp-nova.conf").write_text(text)
    agent.start()

    assert agent.process.wait(PATIENCE_S) == 2
    assert agent.log.count("\n") == 1


@pytest.mark.fault("exporter's thread dies", "it is restarted and counted")
def test_a_dead_exporter_thread_is_restarted_and_counted(agent):
    """Its first run fails; metrics are served by the second, which tells of it."""
    agent.configure()
    agent.start(
        "from amp_nova.http_server import HttpServer\n"
        "_close_older, failed = HttpServer._close_older, []\n"
        "def once(self, seconds):\n"
        "    if not failed:\n"
        "        failed.append(1)\n"
        "        raise RuntimeError('a fault')\n"
        "    _close_older(self, seconds)\n"
        "HttpServer._close_older = once\n" + CODE
    )
    agent.until(lambda: agent.log.count("metrics at /metrics") == 2, "the second run")

    for sample in (
        'amp_thread_restarts_total{thread="exporter"} 1.0',
        'amp_thread_last_success_timestamp_seconds{thread="exporter"}',
    ):
        agent.until(lambda sample=sample: sample in agent.metrics(), sample)
    assert "the thread 'exporter' ended; restarting it (1 so far)" in agent.log
    assert agent.stop() == 0
