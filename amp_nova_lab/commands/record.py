# SPDX-License-Identifier: Apache-2.0
"""``amp-nova record``: what this host's instances do, as a scenario."""

import argparse
import contextlib
import math
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs
from oslo_config import cfg

from amp_nova import conf as options
from amp_nova.agent.operator import control_socket
from amp_nova.agent.publish.host_info import shared_pcpus
from amp_nova.agent.settings import read as read_settings
from amp_nova.agent.threads import Wakeup
from amp_nova.cmd.arguments import add_config_file
from amp_nova.cmd.command import Command, progress
from amp_nova.exceptions import (
    AmpError,
    AnswerIsNo,
    ConfigInvalid,
    HypervisorUnavailable,
)
from amp_nova.host.calibration import idleness
from amp_nova.model.observation import Observation, VcpuKey
from amp_nova.private_files import replace_file
from amp_nova.profiling.speedup import SpeedupEstimate
from amp_nova_lab.recording import file, machine
from amp_nova_lab.recording.file import Surroundings
from amp_nova_lab.recording.recorder import BUCKETS_MAX, Recorder, Recording

if TYPE_CHECKING:
    from amp_nova.host.sensor import LibvirtSensor

INTERVAL_S = 0.5
"""Time between two readings: phases last longer, and a reading takes milliseconds."""
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
OF_THE_HOST = ("policy", "policy_parameter", "booking", "state_path", "libvirt_uri")
"""Options of ``[agent]`` that a scenario gives elsewhere, or that are paths of the host."""


def _time(least_s: float, most: str) -> Callable[[str], float]:
    """The type of an argument that is a time such as 90s, 10m or 0.5, in seconds."""

    def read(text: str) -> float:
        match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([smhd]?)", text)
        return float(match[1]) * UNITS_S[match[2]] if match else 0.0

    def checked(text: str) -> float:
        if not least_s <= read(text) <= read(most):
            raise argparse.ArgumentTypeError(
                f"'{text}' is not a time from {least_s:g} s to {most}: write 90s, 10m or 1h"
            )
        return read(text)

    return checked


class Record(Command):
    """Watch this host's instances for a while and write what they do as a scenario"""

    _epilog = """examples:
  amp-nova record --duration 10m -o host.yaml
  amp-nova record --duration 1h -o host.yaml; amp-nova whatif host.yaml --policy hsp

It changes nothing, and may run beside the agent, which knows the speedups best. Ctrl-C ends it
early and writes what was recorded so far.
"""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--duration",
            type=_time(2.0, "31d"),
            required=True,
            metavar="TIME",
            help="such as 90s, 10m, 1h",
        )
        add("-o", "--output", required=True, metavar="FILE", help="the scenario file")
        add("--force", action="store_true", help="replace FILE if it exists")
        add_config_file(parser)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Record and write; ``AnswerIsNo`` if no instance ran, ``AmpError`` for invalid input."""
        args = parsed_args
        conf = options.load(files=args.config_file)
        with _target(args.output, force=args.force) as target:
            sensor, before = _sensor(conf), idleness.sample(conf.topology.root)
            recorder, recording = _record(args, conf, sensor)
            progress("")
            if recording is None or not recorder.instances:
                raise AnswerIsNo(
                    "no instance ran here, so nothing was recorded: start one, then record again"
                )
            text = file.text(recording, _surroundings(conf, recording, _busy_cores(conf, before)))
            _check_new(args.output, force=args.force)
            replace_file(target, text.encode())
        count = len(recording.instances)
        print(f"{count} instances over {recording.lasted_s:.0f} s, written to {args.output}")


def _check_new(path: str, *, force: bool) -> None:
    if os.path.lexists(path) and not force:
        raise ConfigInvalid(f"{path} exists: name another file, or pass --force to replace it")


@contextlib.contextmanager
def _target(path: str, *, force: bool) -> Iterator[Path]:
    """The file to write; refuses a bad path before recording."""
    _check_new(path, force=force)
    target = Path(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        with tempfile.TemporaryFile(dir=target.parent):
            pass
        yield target
    except OSError as exc:
        raise ConfigInvalid(
            f"{path} cannot be written ({exc.strerror or exc}): name another file with -o"
        ) from exc


def _sensor(conf: cfg.ConfigOpts) -> "LibvirtSensor":
    """The sensor with which the agent reads this machine; it writes nothing."""
    try:
        from amp_nova.agent import wiring
    except ImportError as exc:
        raise AmpError(
            f"libvirt's Python binding cannot be loaded ({exc}): install amp-nova[agent]"
        ) from exc
    wiring.raise_descriptor_limit()
    return wiring.make_sensor(conf)


def _record(
    args: argparse.Namespace, conf: cfg.ConfigOpts, sensor: "LibvirtSensor"
) -> tuple[Recorder, Recording | None]:
    """Read until the time is over or a signal ends the recording."""
    shared = shared_pcpus(conf.nova.cpu_shared_set)
    observation = _observe(sensor, shared)
    machine.check(observation.topology)
    bucket_s = max(INTERVAL_S, args.duration / BUCKETS_MAX)
    recorder = Recorder(read_settings(conf).profiles, bucket_s)
    began_s = time.monotonic()
    due_s = began_s
    wake = Wakeup()
    with wake.signals():  # Ctrl-C and SIGTERM end it early
        recorder.add(observation)
        while not wake.stopping and due_s - began_s < args.duration:
            due_s = min(max(due_s + INTERVAL_S, time.monotonic()), began_s + args.duration)
            wake.wait(max(0.0, due_s - time.monotonic()))
            with contextlib.suppress(HypervisorUnavailable):  # a gap
                recorder.add(_observe(sensor, shared))
            left_s = args.duration - (time.monotonic() - began_s)
            progress(f"{recorder.instances} instances, {max(0.0, left_s):.0f} s left")
    return recorder, recorder.result()


def _observe(sensor: "LibvirtSensor", shared: frozenset[int] | None) -> Observation:
    """An observation, with the last pCPU of each vCPU that may run on several core types."""
    observation = sensor.observe()
    topology = machine.bookable(observation.topology, shared)
    domains = []
    for domain in observation.domains:
        vcpus = []
        for reading in domain.vcpus:
            thread = sensor.thread((domain.domain.resource, reading.index))
            if thread is not None and topology.position(reading.pcpus) is None:
                with contextlib.suppress(OSError):  # it has gone
                    reading = structs.replace(reading, last_pcpu=thread.last_pcpu())
            vcpus.append(reading)
        domains.append(structs.replace(domain, vcpus=tuple(vcpus)))
    return replace(observation, topology=topology, domains=tuple(domains))


def _busy_cores(conf: cfg.ConfigOpts, before: tuple[int, Mapping[int, int]]) -> float | None:
    """How many of the pCPUs that instances may use were busy on average since ``before``."""
    if not (load := idleness.load_between(before, idleness.sample(conf.topology.root))):
        return None
    shared = shared_pcpus(conf.nova.cpu_shared_set)
    return math.fsum(busy for p, busy in load.items() if shared is None or p in shared)


def _surroundings(
    conf: cfg.ConfigOpts, recording: Recording, busy_cores: float | None
) -> Surroundings:
    """What the agent knows, if one runs here, and how busy the host was."""
    answer: Mapping[str, Any] | None
    try:
        answer = control_socket.query(Path(conf.agent.state_path), {"command": "status"})
    except AmpError as exc:
        print(f"amp-nova: {exc}; recording without the agent's speedups", file=sys.stderr)
        answer = None
    name = f"{socket.gethostname()} {time.strftime('%Y-%m-%d %H:%M', time.gmtime())}"
    if answer is None or "status" not in answer:
        return Surroundings(name, ran=False, busy_cores=busy_cores)
    policy = str(answer.get("policy", conf.agent.policy))
    if policy == conf.agent.policy:
        parameters = ["".join(line.split()) for line in conf.agent.policy_parameter]
        policy = ":".join([policy, *parameters])
    defaults = options.load(files=[])
    changed = {
        option: value
        for option, value in conf.agent.items()
        if option not in OF_THE_HOST and value != defaults.agent[option]
    }
    return Surroundings(name, policy, changed, _published(answer), busy_cores=busy_cores)


def _published(answer: Mapping[str, Any]) -> dict[VcpuKey, SpeedupEstimate]:
    """The speedups that the agent knows."""
    estimates = {}
    for instance in answer["status"]:
        for vcpu in instance["vcpus"]:
            if (speedup := vcpu.get("speedup")) is not None:
                estimate = SpeedupEstimate(speedup["ratio"], speedup["error"], speedup["source"])
                estimates[instance["instance"], vcpu["index"]] = estimate
    return estimates
