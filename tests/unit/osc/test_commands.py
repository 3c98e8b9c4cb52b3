# SPDX-License-Identifier: Apache-2.0
"""``openstack amp`` as an operator sees it; the services are fakes (tests/support/clouds.py)."""

import csv
import io
import json

import pytest

from amp_nova.osc.capacity import ListCapacity, ShowCapacity
from amp_nova.osc.flavor import CheckNovaFlavor, ListFlavor, SetFlavor, UnsetFlavor
from amp_nova.osc.host import COEFFICIENT, DELIVERED, LAST_CYCLE, ListHost, ShowHost
from amp_nova.osc.server import DELIVERED_RATIO, DELIVERED_REFCORES, ListServer, ShowServer
from tests.support.clouds import FakeCloud

CLAIM = "resources_AMP:CUSTOM_AMP_MREFCORE"
HALF = {"amp:pref_core": "0.5", CLAIM: "500"}
URL = ("--prometheus", "http://prometheus:9090")


@pytest.fixture
def cloud():
    """A fast and a slow host of one core each, and a flavor of half a reference core."""
    made = FakeCloud()
    made.flavor("half", HALF)
    made.host("fast", {"fast": 2100})
    made.host("slow", {"slow": 1000}, claimed=500)
    made.series[COEFFICIENT] = [
        ({"host": "fast", "core_type": "fast"}, 2.1),
        ({"instance": "slow:9178", "core_type": "slow"}, 1.0),
    ]
    return made


def specs(cloud, flavor):
    return cloud.flavors[flavor]["extra_specs"]


def test_host_list_shows_capacity_claims_and_what_is_measured(cloud):
    """In reference cores, by host and core type; hosts are matched by label or by address."""
    cloud.series[DELIVERED] = [({"instance": "slow.example:9178"}, 0.4987)]

    fast, slow = cloud.rows(ListHost, *URL)

    assert fast["Core Type"] == "fast"
    assert (fast["Capacity"], fast["Claimed"], fast["Free"]) == (2.1, 0, 2.1)
    assert (fast["Coefficient"], slow["Coefficient"]) == (2.1, 1.0)
    assert (slow["Claimed"], slow["Free"], slow["Counts Ips"]) == (0.5, 0.5, "no")
    assert (slow["Delivered By Host"], fast["Delivered By Host"]) == (0.4987, None)


def test_no_name_controls_the_terminal(cloud):
    """A host's agent names core types, and a scrape job's labels are not escaped by Prometheus."""
    evil = "fast\x1b]0;owned\x07\x1b[2J\u202e"
    cloud.host("odd", {evil: 1000})
    cloud.server("web", "half", "odd")
    cloud.service, cloud.told["web-id"] = "http://amp", {"current_core_type": evil, evil: 1}
    for command, words in ((ListHost, ()), (ShowHost, ("odd",)), (ShowServer, ("web",))):
        for form in ("table", "csv", "value", "json", "yaml"):
            if form == "csv" and command is not ListHost:
                continue
            text = cloud.run(command, *words, "-f", form)[1]
            assert "owned" in text, (command, form)
            assert not {"\x1b", "\x07", "\u202e"} & set(text), (command, form)


def test_host_show_names_the_bookings_on_the_host(cloud, monkeypatch):
    """What an operator looks at before he empties a host."""
    monkeypatch.setattr("time.time", lambda: 1000.0)
    cloud.flavor("free")
    cloud.server("web", "half", "slow")
    cloud.server("batch", "free", "slow")
    cloud.server("other", "half", "fast")
    cloud.series[LAST_CYCLE] = [({"host": "slow"}, 998.5)]

    shown = cloud.rows(ShowHost, "slow", *URL)

    assert shown["bookings"] == [{"id": "web-id", "name": "web", "booking": "0.5 refcores"}]
    assert shown["core_types"][0]["free"] == 0.5
    assert shown["last_cycle_age_s"] == 1.5
    assert shown["calibration_age_s"] is None


def test_a_warning_says_what_to_set_in_a_cloud_without_claims(caplog):
    """An empty table alone would not help."""
    assert FakeCloud().rows(ListHost) == []
    assert "set [placement] enabled" in caplog.text


def test_server_list_shows_booked_and_delivered(cloud):
    """Best effort only on request; invalid flavors are shown with the reason."""
    cloud.flavor("free")
    cloud.flavor("pair", {"amp:pref_core": "0.5", "amp:pref_core.1": "1.5"}, vcpus=2)
    cloud.flavor("broken", {"amp:pref_core": "lots"})
    for name, flavor in (("a", "half"), ("b", "free"), ("c", "pair"), ("d", "broken")):
        cloud.server(name, flavor, "fast")
    cloud.series[DELIVERED_REFCORES] = [({"resource": "a-id"}, 0.50012)]
    cloud.series[DELIVERED_RATIO] = [({"resource": "a-id"}, 1.0002)]

    a, c, d = cloud.rows(ListServer, *URL)

    assert (a["Booking"], a["Delivered Refcores"], a["Delivered Ratio"]) == (
        "0.5 refcores",
        0.5001,
        1,
    )
    assert (c["Booking"], c["Delivered Refcores"]) == ("0.5 refcores, 1.5 refcores", None)
    assert "invalid: amp:pref_core='lots' is not allowed" in d["Booking"]
    assert len(cloud.rows(ListServer, "--best-effort", *URL)) == 4
    assert cloud.rows(ListServer, "--host", "slow", *URL) == []


def test_server_list_of_a_project(cloud, caplog):
    """By its name or id; a domain tells those of one name apart."""
    cloud.projects = {"default": {"p1": "shop", "p2": "lab"}, "other": {"p3": "shop"}}
    for name, project in (("a", "p1"), ("b", "p2"), ("c", "p3"), ("d", "own")):
        cloud.server(name, "half", "fast", project)

    def names(*words):
        return [row["Name"] for row in cloud.rows(ListServer, *words, *URL)]

    assert names() == ["d"]
    assert names("--all-projects") == ["a", "b", "c", "d"]
    assert names("--project", "lab") == names("--project", "p2") == ["b"]
    assert names("--project", "shop", "--project-domain", "other") == ["c"]
    assert cloud.run(ListServer, "--project", "shpo")[0] == 2
    assert cloud.run(ListServer, "--project", "shop", "--project-domain", "odd")[0] == 2
    assert "there is no project 'shpo': see 'openstack project list'" in caplog.text
    assert "there is no domain 'odd': see 'openstack domain list'" in caplog.text


def test_server_show_has_the_claim_and_every_vcpu(cloud):
    """Claims by provider, limits and delivery by vCPU, shortfall by cause."""
    cloud.server("web", "half", "fast")
    provider = {"resources": {"CUSTOM_AMP_MREFCORE": 500}}
    cloud.allocations["web-id"] = {
        "fast_amp_fast-uuid": provider,
        "fast-uuid": {"resources": {"VCPU": 1}},
    }
    quota = 'sum by (vcpu) (amp_vcpu_quota_cores{resource="web-id"})'
    cloud.series[quota] = [({"vcpu": "0"}, 0.238095)]

    shown = cloud.rows(ShowServer, "web", *URL)

    assert shown["claimed_refcores"] == {"fast_amp_fast": 0.5}
    assert shown["quota_cores_by_vcpu"] == {"0": 0.2381}
    assert (shown["booking"], shown["limit"]) == ("0.5 refcores", "hard")
    assert cloud.rows(ShowServer, "web-id", *URL) == shown


def test_prometheus_comes_from_the_catalogue_and_only_that_one_gets_the_token(cloud):
    """An address on the command line may be anybody's."""
    cloud.catalogue = "http://catalogue/prometheus/"
    cloud.rows(ListHost)
    cloud.rows(ListHost, *URL)

    asked = dict(cloud.asked)
    assert asked["http://catalogue/prometheus/api/v1/query"] is True
    assert asked["http://prometheus:9090/api/v1/query"] is False


def test_an_owner_sees_the_figures_of_his_server_without_more_rights(cloud, caplog):
    """From the service of the catalogue; neither Placement nor Prometheus answers him."""
    cloud.admin, cloud.service = False, "http://catalogue:9179/"
    cloud.server("web", "half", None)
    cloud.told["web-id"] = {"age_s": 4.2, "booked_refcores": 0.5, "delivered_refcores": 0.498}

    shown = cloud.rows(ShowServer, "web")

    assert (shown["age_s"], shown["delivered_refcores"]) == (4.2, 0.498)
    assert (shown["booking"], shown["claimed_refcores"]) == ("0.5 refcores", {})
    assert cloud.asked == [("http://catalogue:9179/v1/servers/web-id", True)]
    assert caplog.text == ""


def test_the_service_can_be_named(cloud, caplog):
    """``--url`` comes before the catalogue; what is no address is named in a sentence."""
    cloud.service = "http://catalogue:9179"
    cloud.server("web", "half", "fast")
    cloud.told["web-id"] = {"age_s": 4.2}

    assert cloud.rows(ShowServer, "web", "--url", "http://other:9179/")["age_s"] == 4.2
    assert cloud.asked == [("http://other:9179/v1/servers/web-id", True)]
    assert cloud.run(ShowServer, "web", "--url", "other:9179")[0] == 2
    assert "--url 'other:9179' is not an address: write http://HOST:PORT" in caplog.text


@pytest.mark.parametrize(
    ("told", "down", "said"),
    [
        ({}, True, "amp-nova-vendordata has no figures for this server: connection refused"),
        ({}, False, "amp-nova-vendordata refused the request (404)"),
        ({"web-id": {}}, False, "no figures for this server: nothing was measured recently"),
    ],
    ids=["down", "unknown", "no figures"],
)
def test_the_booking_is_shown_if_the_service_tells_nothing(cloud, caplog, told, down, said):
    """The reason is a warning."""
    cloud.service, cloud.told, cloud.down = "http://catalogue:9179", told, down
    cloud.server("web", "half", "fast")

    shown = cloud.rows(ShowServer, "web")

    assert shown["booking"] == "0.5 refcores"
    assert "age_s" not in shown
    assert said in caplog.text


def test_an_administrator_gets_the_figures_of_all_projects_from_prometheus(cloud):
    """The service answers owners."""
    cloud.service = "http://catalogue:9179"
    cloud.server("web", "half", "fast", "p1")

    assert "age_s" not in cloud.rows(ShowServer, "web", "--all-projects", *URL)
    assert {url for url, _ in cloud.asked} == {"http://prometheus:9090/api/v1/query"}


def test_without_prometheus_the_rest_is_shown(cloud, caplog):
    """It fails once, not once per query, and the claims are there."""
    cloud.down = True

    rows = cloud.rows(ListHost, *URL)

    assert [row["Free"] for row in rows] == [2.1, 0.5]
    assert [row["Coefficient"] for row in rows] == [None, None]
    assert len(cloud.asked) == 1
    assert "Prometheus at http://prometheus:9090 failed: connection refused" in caplog.text


def test_flavor_set_writes_booking_and_claim_together(cloud):
    """Other properties stay; a changed booking changes the claim."""
    cloud.flavor("new", {"hw:mem_page_size": "large"}, vcpus=2)

    assert cloud.run(SetFlavor, "new", "amp:pref_core=0.5", "amp:core_type=fast") == (0, "")

    assert specs(cloud, "new") == {
        "hw:mem_page_size": "large",
        "amp:pref_core": "0.5",
        "amp:core_type": "fast",
        CLAIM: "1000",
        "trait_AMP:CUSTOM_AMP_CORE_FAST": "required",
    }
    assert cloud.run(SetFlavor, "new", "amp:pref_core.1=1.5") == (0, "")
    assert specs(cloud, "new")[CLAIM] == "2000"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--property", "amp:pref_core=0.5", "--property", "amp:limit=soft"], ""),
        (["--property", "amp:burst_s=2"], "amp:burst_s has no effect without a booking"),
        (["--property", "amp:ips=2T", "--no-claim"], "no core gives more than"),
    ],
)
def test_flavor_set_is_silent_unless_what_it_sets_cannot_be_meant(cloud, caplog, words, said):
    """A warning; Nova accepts it."""
    cloud.flavor("new")

    assert cloud.run(SetFlavor, *words, "new") == (0, "")
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
    assert specs(cloud, "new")


def test_flavor_unset_removes_what_the_key_had_claimed(cloud):
    """A trait goes with its key, everything with ``--all``."""
    cloud.flavor("new", {"other": "kept"})
    assert cloud.run(SetFlavor, "new", "amp:pref_core=0.5", "--property", "amp:core_type=fast") == (
        0,
        "",
    )

    assert cloud.run(UnsetFlavor, "new", "amp:core_type") == (0, "")
    assert specs(cloud, "new") == {"other": "kept", "amp:pref_core": "0.5", CLAIM: "500"}

    assert cloud.run(UnsetFlavor, "new", "--all") == (0, "")
    assert specs(cloud, "new") == {"other": "kept"}


def test_a_booking_in_ips_is_claimed_with_the_reference_ips(cloud, caplog):
    """Without it nothing is written, unless the claim is renounced."""
    cloud.flavor("count")

    assert cloud.run(SetFlavor, "count", "amp:ips=500M")[0] == 2
    assert "give --reference-ips IPS" in caplog.text
    assert specs(cloud, "count") == {}

    assert cloud.run(SetFlavor, "count", "amp:ips=500M", "--reference-ips", "2G") == (0, "")
    assert specs(cloud, "count") == {
        "amp:ips": "500M",
        CLAIM: "250",
        "trait_AMP:CUSTOM_AMP_IPS": "required",
    }
    assert cloud.rows(CheckNovaFlavor) == []
    assert cloud.run(SetFlavor, "count", "amp:limit=soft", "--no-claim") == (0, "")
    assert specs(cloud, "count") == {"amp:ips": "500M", "amp:limit": "soft"}


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        (SetFlavor, ["half", "amp:pref_core=lots"], "amp:pref_core='lots' is not allowed"),
        (SetFlavor, ["half", "amp:pref_cores=1"], "did you mean amp:pref_core"),
        (SetFlavor, ["half", "amp:ips=1G"], "keep one of them"),
        (SetFlavor, ["half", "hw:x=1"], "'hw:x' is not allowed: write amp:NAME=VALUE"),
        (
            SetFlavor,
            ["half", "amp:limit=hard", "amp:limit=soft"],
            "amp:limit is given twice",
        ),
        (SetFlavor, ["half"], "nothing is set: give KEY=VALUE"),
        (SetFlavor, ["hlaf", "amp:limit=soft"], "there is no flavor 'hlaf'"),
        (ShowHost, ["slwo", *URL], "no host 'slwo' has an agent's providers: fast, slow"),
        (ListCapacity, ["--host", "slwo"], "no host 'slwo' has an agent's providers: fast, slow"),
        (ShowServer, ["web", *URL], "2 servers are named 'web': give the id of one"),
        (
            ListHost,
            ["--prometheus", "prometheus:9090"],
            "'prometheus:9090' is not an address",
        ),
        (UnsetFlavor, ["half"], "name the keys to remove, or give --all"),
        (UnsetFlavor, ["half", "amp:limit"], "has no 'amp:limit': it has amp:pref_core"),
    ],
)
def test_wrong_input_changes_nothing(cloud, caplog, command, words, said):
    """One sentence that names it, and exit status 2."""
    for host in ("fast", "slow"):
        cloud.server("web", "half", host)
        cloud.servers[-1]["id"] = f"web-on-{host}"

    assert cloud.run(command, *words)[0] == 2
    assert said in caplog.text
    assert specs(cloud, "half") == HALF


def test_what_nova_refuses_is_said_in_its_words(cloud):
    """Such as a tenant who may not change flavors."""
    cloud.refused = "Policy doesn't allow it"

    with pytest.raises(Exception, match=r"Nova refused the request \(400\): Policy doesn't"):
        cloud.run(SetFlavor, "half", "amp:limit=soft")


def test_flavor_list_shows_bookings(cloud):
    """Those without a booking on request only, unless one was probably meant."""
    cloud.flavor("free")
    cloud.flavor("typo", {"apm:pref_core": "1"})
    (row,) = [row for row in cloud.rows(ListFlavor) if row["Name"] == "typo"]
    assert row["Booking"].endswith("books nothing, because Nova ignores it: write amp:pref_core")
    del cloud.flavors["typo"]
    cloud.flavor("count", {"amp:ips": "2.5G"})

    assert [row["Name"] for row in cloud.rows(ListFlavor)] == ["count", "half"]
    assert [row["Booking"] for row in cloud.rows(ListFlavor)] == ["2.5G Ips", "0.5 refcores"]
    assert [row["Delay (ms)"] for row in cloud.rows(ListFlavor)] == [None, 36]
    assert len(cloud.rows(ListFlavor, "--best-effort")) == 3


@pytest.mark.parametrize(
    ("extra_specs", "problem"),
    [
        ({"amp:pref_core": "0.5"}, "it claims nothing in Placement"),
        ({"amp:pref_core": "0.7", CLAIM: "500"}, f"{CLAIM} is 500, its booking needs 700"),
        ({CLAIM: "500"}, f"{CLAIM} is 500, its booking needs none"),
        ({"amp:pref_core": "1", "quota:cpu_quota": "1"}, "would both set the CPU quota"),
        ({**HALF, "hw:cpu_policy": "dedicated"}, "remove the booking or the dedicated CPUs"),
        ({"amp:ips": "1G"}, "set it with --reference-ips"),
        ({"amp:burst_s": "2"}, "amp:burst_s has no effect without a booking"),
        ({"amp:ips": "1G", CLAIM: "500"}, "trait_AMP:CUSTOM_AMP_IPS is missing"),
        ({"AMP:pref_core": "1"}, "'AMP:pref_core' books nothing, because Nova ignores it"),
    ],
)
def test_flavor_check_finds_what_does_not_match(cloud, extra_specs, problem):
    """Exit status 1, one row per problem; flavors in order give none."""
    cloud.flavor("bad", extra_specs)

    status, text = cloud.run(CheckNovaFlavor, "-f", "json")

    assert status == 1
    ((row),) = json.loads(text)
    assert row["Flavor"] == "bad"
    assert problem in row["Problem"]
    assert cloud.rows(CheckNovaFlavor, "half") == []


def capacity(cloud, *words):
    """``Fits`` and ``Limited By`` by flavor."""
    _, text = cloud.run(ListCapacity, *URL, *words, "-f", "csv")
    return {
        r["Flavor"]: (int(r["Fits"]), r["Limited By"]) for r in csv.DictReader(io.StringIO(text))
    }


def test_capacity_is_summed_over_hosts_and_limited_by_what_is_short(cloud):
    """4 halves fit 2.1, 1 fits the half that is free; vCPUs and memory limit others."""
    cloud.server("web", "half", "slow")
    cloud.flavor("wide", {"amp:pref_core": "0.01"}, vcpus=8)
    cloud.flavor("large", ram=3000)

    found = capacity(cloud)

    assert found["half"] == (5, "reference cores")
    assert found["wide"] == (2, "VCPU")
    assert found["large"] == (2, "MEMORY_MB")
    assert capacity(cloud, "--flavor", "half", "--host", "slow") == {"half": (1, "reference cores")}
    cloud.providers[0]["traits"].append("COMPUTE_STATUS_DISABLED")  # of the fast host
    assert capacity(cloud)["half"] == (1, "reference cores")
    assert [r["State"] for r in cloud.rows(ListHost, *URL)] == ["disabled", "enabled"]


def test_capacity_with_the_hosts_that_fit(cloud):
    """``list --long`` counts them, ``show FLAVOR`` names them."""
    cloud.server("web", "half", "slow")
    cloud.host("full", {"slow": 1000}, vcpus=0)

    (row,) = cloud.rows(ListCapacity, "--long", *URL)
    assert (row["Fits"], row["Hosts"]) == (5, 2)
    assert row["Hosts By Limit"] == {"reference cores": 2, "VCPU": 1}
    assert (row["RAM"], row["Disk"], row["Claimed Refcores"]) == (16, 0, 0.5)

    shown = cloud.rows(ShowCapacity, "half", *URL)
    assert (shown["fits"], shown["limited_by"], shown["hosts"]) == (5, "reference cores", 2)
    assert shown["fits_by_host"] == {"fast": 4, "full": 0, "slow": 1}
    assert cloud.rows(ShowCapacity, "half", "--host", "slow", *URL)["fits"] == 1


def test_capacity_in_fragments_is_not_counted(cloud):
    """Two cores with 0.4 free each hold no vCPU of 0.5; Placement alone would see room for one."""
    cloud.host("twin", {"slow": 2000}, claimed=1200)
    cloud.flavor("six", {"amp:pref_core": "0.6", CLAIM: "600"})
    for name in ("a", "b"):
        cloud.server(name, "six", "twin")
    cloud.series[COEFFICIENT].append(({"host": "twin", "core_type": "slow"}, 1.0))

    assert capacity(cloud, "--flavor", "half", "--host", "twin") == {
        "half": (0, "reference cores of one pCPU")
    }
    cloud.series.clear()
    assert capacity(cloud, "--flavor", "half", "--host", "twin") == {"half": (1, "reference cores")}


def test_ips_count_as_what_they_claim_on_hosts_that_count(cloud):
    """A host that counts no instructions takes none."""
    cloud.host("counting", {"slow": 1000}, traits=["CUSTOM_AMP_IPS"])
    cloud.series[COEFFICIENT].append(({"host": "counting", "core_type": "slow"}, 1.0))
    cloud.flavor("ips")
    assert cloud.run(SetFlavor, "ips", "amp:ips=500M", "--reference-ips", "2G") == (0, "")

    assert capacity(cloud)["ips"] == (4, "reference cores")
