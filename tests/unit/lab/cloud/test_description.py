# SPDX-License-Identifier: Apache-2.0
"""Reading the description of a cloud."""

import re
from pathlib import Path

import pytest

import amp_nova
from amp_nova.conf.agent import OPTS
from amp_nova_lab.cloud import description
from amp_nova_lab.scenarios import document
from amp_nova_lab.scenarios.document import ScenarioInvalid

EXAMPLE = Path(amp_nova.__file__).parent.parent / "doc/source/user/cloud.yaml"
SMALL = """\
duration_s: 3600
cloud:
  hosts: [{count: 2, core_types: [{name: slow, count: 2, coefficient: 1.0}]}]
  flavors: [{name: a, share: 2, extra_specs: {amp:pref_core: 0.5}}, {name: b, vcpus: 2}]
  instances_per_host: 3
  lifetime_s: 600
"""
FAULTS = {
    "no hosts": ("hosts: [{count: 2, core_types: [{name: slow, count: 2, coefficient: 1.0}]}]",
                 "hosts: []", "line 3: cloud.hosts is empty: give a list"),
    "bad booking": ("0.5", "-1", "line 4: flavor 'a': amp:pref_core='-1'"),
    "nobody": ("host: 3", "host: 0", "instances_per_host is '0': give a number > 0"),
    "a host as well": ("cloud:", "vms: []\ncloud:", "'vms' is not a key of a scenario"),
}  # fmt: skip


def read(tmp_path, text, **replaced):
    """The cloud of a file of that text."""
    path = tmp_path / "made.yaml"
    path.write_text(text)
    whole = document.load(path)
    assert description.describes(whole)
    return description.read(whole, replaced)


def test_a_cloud_is_read(tmp_path):
    """With defaults for all that is optional."""
    found = read(tmp_path, SMALL)

    assert (found.name, found.duration_s, found.seed) == ("made", 3600.0, 0)
    assert (len(found.cloud.hosts), found.cloud.candidates) == (2, 100)
    assert [(f.share, f.sensitivity, len(f.booking.vcpus)) for f in found.cloud.flavors] == [
        (2.0, 0.5, 1),
        (1.0, 0.5, 2),
    ]


def test_the_example_of_the_guide_is_read():
    """A thousand hosts of three kinds."""
    found = description.read(document.load(EXAMPLE), {})

    assert len(found.cloud.hosts) == 1000
    assert {len(topology.pcpus) for topology in found.cloud.hosts} == {20, 24}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_cloud_is_refused_in_a_sentence(tmp_path, fault):
    """It names the place, the value and what is allowed."""
    old, new, said = FAULTS[fault]
    assert old in SMALL

    with pytest.raises(ScenarioInvalid) as refused:
        read(tmp_path, SMALL.replace(old, new, 1))

    assert "\n" not in str(refused.value)
    assert re.search(said, str(refused.value)), refused.value


def test_more_arrivals_than_can_be_simulated_are_refused(tmp_path):
    """Rather than to run for weeks."""
    text = SMALL.replace("3600", "2e6").replace("_s: 600", "_s: 1").replace("host: 3", "host: 300")

    with pytest.raises(ScenarioInvalid, match=r"line 3: about 1.2e\+09 instances would arrive"):
        read(tmp_path, text)


def test_a_scenario_with_hosts_describes_no_cloud(tmp_path):
    """Nor does a file that is no mapping."""
    for text in ("duration_s: 1\nhost: {}\nvms: []\n", "- cloud\n", "cloud\n"):
        path = tmp_path / "made.yaml"
        path.write_text(text)
        assert not description.describes(document.load(path))


def test_the_reserve_is_the_agents_default():
    """So the simulated cloud sells as much as a real one."""
    (default,) = (o.default for o in OPTS if o.name == "reserve_ratio")

    assert description.read(document.load(EXAMPLE), {}).cloud.reserve_ratio == default
