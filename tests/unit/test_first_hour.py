# SPDX-License-Identifier: Apache-2.0
"""The pages of the first hour: one screen each, and what they show is what is printed."""

import os
import re
import shlex
import sys
import textwrap
from importlib.metadata import entry_points

from amp_nova.osc.host import COEFFICIENT
from amp_nova.osc.server import DELIVERED_RATIO
from amp_nova.tenant import probe
from tests.support.clouds import FakeCloud
from tests.support.documented import ROOT, session
from tests.support.programs import run

START = ROOT / "doc/source/start"
CLIENT = {e.name: e for e in entry_points(group="openstack.amp.v1")}


def steps(name):
    """Command and output of every step of a page, in order."""
    page = (START / f"{name}.rst").read_text()
    blocks = re.findall(r"^.. code-block:: console\n((?:(?: .*)?\n)+)", page, re.MULTILINE)
    for block in blocks:
        for _, command, output in session(textwrap.dedent(block).splitlines()):
            yield command, output


def printed(words, **environment):
    """What a command prints, without spaces at the ends of its lines."""
    text = run(*words, cwd=ROOT, **environment)
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def amp_nova(command):
    return [sys.executable, "-m", "amp_nova.cmd.cli", *shlex.split(command)[1:]]


def test_the_operators_commands_print_what_the_page_shows():
    """Those that need a cloud on fakes of its services; ``tests/e2e`` runs them in a real one."""
    cloud = FakeCloud()
    cloud.host("fast", {"fast": 2000})
    cloud.host("slow", {"slow": 1000})
    cloud.catalogue = "http://prometheus:9090"
    cloud.series[COEFFICIENT] = [
        ({"host": "fast", "core_type": "fast"}, 2.0),
        ({"host": "slow", "core_type": "slow"}, 1.0),
    ]
    cloud.series[DELIVERED_RATIO] = [({"resource": "first-id"}, 1.0)]
    tried = 0
    for command, output in steps("operator"):
        words = shlex.split(command)
        if command.startswith("amp-nova flavor"):
            assert printed(amp_nova(command)) == output
        elif command.startswith("openstack flavor create half"):
            cloud.flavor("half", ram=512)
        elif command.startswith("openstack server create --flavor half"):
            cloud.server(words[-1], "half", "fast")
        elif command.startswith("openstack amp"):
            status, text = cloud.run(CLIENT["_".join(words[1:4])].load(), *words[4:])
            assert (status, text.strip("\n")) == (0, output)
        else:
            continue
        tried += 1

    assert tried == 6


def test_the_probe_prints_what_the_tenants_page_shows():
    """Its columns and its verdict, of this machine and one second."""
    output = dict(steps("tenant"))["python3 probe.py"]
    program = f"""
import sys
sys.path.insert(0, {os.path.dirname(probe.__file__)!r})
import probe
from argparse import Namespace
print(probe.run(Namespace(duration=1, json=False, reference=None))[0])
"""
    text = run(sys.executable, "-I", "-S", "-c", program)
    titles = [line.split() for line in (text + output).splitlines() if line.startswith("vCPU  ")]
    promise = "Sovereign Cloud Stack (shared-core, 20 % of a core for 99 % of the time): "

    assert titles[0] == titles[1]
    assert promise in text
    assert promise in output


def test_the_researchers_commands_print_what_the_page_shows(tmp_path):
    """With the example policy installed, as ``pip`` would, by setuptools."""
    source = ROOT / "doc/source/contributor/example_policy"
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    folder = tmp_path / "installed"
    into = ("--install-dir", folder)
    program = "from setuptools import setup; setup()"
    setup = (sys.executable, "-c", program, "install_lib", *into, "install_egg_info", *into)
    run(*setup, cwd=tmp_path)
    path = os.pathsep.join(map(str, (folder, ROOT)))
    found = [step for step in steps("researcher") if step[0].startswith("amp-nova ")]

    assert len(found) == 2
    for command, output in found:
        assert printed(amp_nova(command), PYTHONPATH=path).startswith(output)
