# SPDX-License-Identifier: Apache-2.0
"""``openstack amp flavor scs`` as an operator sees it; the services are fakes."""

import json

import pytest

from amp_nova.osc.flavor import CheckNovaFlavor
from amp_nova.osc.scs import ScsFlavor
from tests.support.clouds import FakeCloud

CLAIM = "resources_AMP:CUSTOM_AMP_MREFCORE"
SHARED = {"scs:cpu-type": "shared-core"}
FIFTH = {"amp:pref_core": "0.211", "amp:limit": "soft"}


@pytest.fixture
def cloud():
    return FakeCloud()


def specs(cloud, flavor):
    return cloud.flavors[flavor]["extra_specs"]


def result(cloud, *words):
    """Exit status, and the rows by flavor."""
    status, text = cloud.run(ScsFlavor, *words, "-f", "json")
    return status, {row["Flavor"]: row for row in json.loads(text)}


def test_a_shared_core_is_a_fifth_of_a_core_in_every_minute_that_counts_as_kept(cloud):
    """95 % of the booking is the least that the service level counts as kept: 0.2 of a core."""
    cloud.flavor("SCS-4V-16", {"scs:cpu-type": "shared-core", "scs:name-v2": "SCS-4V-16"}, vcpus=4)

    status, rows = result(cloud)

    assert status == 0
    assert rows["SCS-4V-16"]["Booking"] == "4 x 0.211 refcores"
    assert rows["SCS-4V-16"]["Result"] == "set"
    kept = {"scs:cpu-type": "shared-core", "scs:name-v2": "SCS-4V-16"}
    assert specs(cloud, "SCS-4V-16") == {**kept, **FIFTH, CLAIM: "844"}
    assert 0.95 * 0.211 >= 0.2
    assert cloud.run(CheckNovaFlavor)[0] == 0


def test_the_second_run_changes_nothing(cloud):
    """Nothing is written; the booking is shown all the same. Nor does a dry run."""
    cloud.flavor("web", SHARED)
    assert result(cloud, "--dry-run")[1]["web"]["Result"] == "would be set"
    assert specs(cloud, "web") == SHARED
    result(cloud)
    cloud.refused = "nothing may be written"

    status, rows = result(cloud)

    assert status == 0
    assert (rows["web"]["Result"], rows["web"]["Booking"]) == ("unchanged", "0.211 refcores")


@pytest.mark.parametrize(
    ("name", "more", "cpu_type"),
    [
        ("SCS-2V-4-20s", {}, "shared-core"),
        ("SCS-2Li-4", {}, "crowded-core"),
        ("m1.small", {"scs:name-v3": "SCS-1V-4-10"}, "shared-core"),
        ("SCS-2V-4", {"scs:cpu-type": "crowded-core"}, "crowded-core"),
    ],
)
def test_the_promise_is_read_from_property_or_name(cloud, name, more, cpu_type):
    """The property goes before the names, which may state less than there is."""
    cloud.flavor(name, more)

    assert result(cloud)[1][name]["CPU Type"] == cpu_type


def test_flavors_that_promise_nothing_are_left_alone(cloud):
    """Without a promise, and with one of no share of a core."""
    cloud.flavor("m1.small", {"amp:pref_core": "0.1"})
    cloud.flavor("SCS-1L-1")

    status, rows = result(cloud)

    assert status == 0
    assert rows["SCS-1L-1"]["Result"] == "unchanged"
    assert rows["SCS-1L-1"]["Booking"] == "best effort"
    assert "m1.small" not in rows
    status, rows = result(cloud, "m1.small")
    assert status == 1
    assert "it has neither scs:cpu-type nor a name such as SCS-2V-4" in rows["m1.small"]["Reason"]


def test_a_booking_is_raised_and_never_lowered(cloud):
    """The operator's own keys stay, the claim follows."""
    cloud.flavor("less", {**SHARED, "amp:pref_core": "0.1", "amp:limit": "hard", CLAIM: "100"})
    cloud.flavor("more", {**SHARED, "amp:pref_core": "0.5", CLAIM: "500"})

    result(cloud)

    assert specs(cloud, "less") == {
        **SHARED,
        "amp:pref_core": "0.211",
        "amp:limit": "hard",
        CLAIM: "211",
    }
    assert specs(cloud, "more")["amp:pref_core"] == "0.5"
    result(cloud, "--core", "2")  # a fifth of the time of a core with coefficient 2
    assert specs(cloud, "less")["amp:pref_core"] == "0.422"


def test_dedicated_flavors_that_nova_pins_are_kept_by_nova(cloud):
    """A booking there would limit the pCPU that the vCPU has for itself."""
    pinned = {"hw:cpu_policy": "dedicated"}
    cloud.flavor("SCS-2T-4", pinned)
    cloud.flavor("SCS-2T-8", {"resources:PCPU": "2", "resources:VCPU": "0"})
    cloud.flavor("SCS-2C-4", {**pinned, "hw:cpu_thread_policy": "isolate"})
    cloud.flavor("SCS-4C-8", pinned)
    cloud.flavor("SCS-8T-8", {**pinned, "amp:pref_core": "1"})

    status, rows = result(cloud)

    assert status == 1
    assert rows["SCS-2T-4"]["Reason"] == "Nova keeps it: hw:cpu_policy=dedicated"
    assert rows["SCS-2T-8"]["Reason"] == "Nova keeps it: resources:PCPU=2"
    assert rows["SCS-2C-4"]["Result"] == "unchanged"
    assert "set hw:cpu_thread_policy=isolate" in rows["SCS-4C-8"]["Reason"]
    assert "the booking limits it: remove the booking" in rows["SCS-8T-8"]["Reason"]


def test_dedicated_flavors_are_booked_whole_on_request(cloud):
    """All of a core or of a thread of a core type that the operator names."""
    cloud.flavor("SCS-2C-4", vcpus=2)
    cloud.flavor("SCS-2T-4", vcpus=2)

    status, rows = result(cloud, "--dedicated-core", "fast=2.1", "--dedicated-thread", "fast=1.3")

    assert status == 0
    assert rows["SCS-2C-4"]["Booking"] == "2 x 2.1 refcores"
    assert specs(cloud, "SCS-2T-4") == {
        "amp:pref_core": "1.3",
        "amp:core_type": "fast",
        "amp:limit": "soft",
        CLAIM: "2600",
        "trait_AMP:CUSTOM_AMP_CORE_FAST": "required",
    }


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("SCS-2C-4", {}, "a booking is a speed: set hw:cpu_policy=dedicated, or give --dedicated-"),
        ("x", {"scs:cpu-type": "shared"}, "scs:cpu-type='shared' is not in scs-0103: write one of"),
        ("SCS-1V-1", {"quota:cpu_quota": "1"}, "quota:cpu_quota and a booking would both set"),
        ("SCS-1V-1", {"amp:ips": "1G"}, "amp:ips says nothing about a share of a core: remove it"),
        ("SCS-1V-1", {"amp:pref_core.0": "0.1"}, "amp:pref_core.0=0.1 is less than the promised"),
        ("SCS-1V-1", {"amp:pref_core": "lots"}, "amp:pref_core='lots' is not allowed"),
        ("SCS-1V-1", {"hw:cpu_policy": "mixed"}, "hw:cpu_policy=mixed pins some of its vCPUs"),
    ],
)
def test_what_cannot_be_mapped_is_refused_and_the_rest_is_done(cloud, name, more, reason):
    """One sentence with the remedy; the flavor stays as it is, exit status 1."""
    cloud.flavor(name, more)
    cloud.flavor("web", SHARED)

    status, rows = result(cloud)

    assert status == 1
    assert rows[name]["Result"] == "refused"
    assert reason in rows[name]["Reason"]
    assert specs(cloud, name) == more
    assert rows["web"]["Result"] == "set"


@pytest.mark.parametrize(
    "words", [("--core", "0"), ("--dedicated-core", "2"), ("--reference-ips", "2 G")]
)
def test_wrong_numbers_are_refused(cloud, words, capsys):
    """Before anything is written."""
    with pytest.raises(SystemExit) as exit_:
        cloud.run(ScsFlavor, *words)

    assert exit_.value.code == 2
    assert f"{words[1]!r} is not" in capsys.readouterr().err
