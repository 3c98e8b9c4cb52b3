# SPDX-License-Identifier: Apache-2.0
"""Parsing the XML of domains as Nova 34 writes it, with amp-nova's mark in their metadata."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.host.libvirt.domain_xml import MARK_URI, NO_MARK, Fallback, Mark, Pin, parse
from tests.support.fakehost import NOVA, nova_metadata, nova_xml, resource

SPECS = {"amp:pref_core": "0.5", "amp:limit": "hard", "hw:cpu_policy": "shared"}


def test_domain_of_nova_is_parsed():
    """Names, project, flavor and every extra spec."""
    found = parse(nova_xml(specs=SPECS)).domain

    assert found.resource == resource("instance-00000001")
    assert (found.name, found.vcpus) == ("instance-00000001", 2)
    assert found.specs == SPECS
    assert (found.project, found.display_name, found.flavor) == (
        "5ac0ffee",
        "web & shop",
        "m1.half",
    )
    assert found.problem is None


@pytest.mark.parametrize("version", ["1.0", "1.2", "2.0"])
def test_metadata_of_another_version_is_read(version):
    """Nova before 22.0 wrote 1.0; without a project, an owner would see nothing of the server."""
    namespace = f"http://openstack.org/xmlns/libvirt/nova/{version}"

    found = parse(nova_xml(metadata=nova_metadata(SPECS, namespace))).domain

    assert (found.project, found.flavor, found.specs) == ("5ac0ffee", "m1.half", SPECS)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        "<other xmlns='urn:x'/>",
        "<nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'/>",
        nova_metadata(SPECS, namespace="urn:not-nova"),
        nova_metadata(SPECS).replace("extraSpec", "spec"),
        nova_metadata(SPECS).replace("name=", "label="),
        "words that are no element",
    ],
    ids=["none", "foreign", "empty", "namespace", "other element", "no names", "text"],
)
def test_other_metadata_is_not_a_booking(metadata):
    """Nor is none; without cpu_shared_set, such a domain may run anywhere."""
    found = parse(nova_xml(metadata=metadata))

    assert (found.domain.specs, found.domain.problem) == ({}, None)
    assert (found.cpuset, found.pins) == (None, {})


def test_values_are_not_interpreted():
    """The grammar validates them, however odd or long they are."""
    odd = {"amp:pref_core": "9" * 5000, "amp:ips": "", "amp:weight": "<&>", "amp:limit": "härd"}

    assert parse(nova_xml(specs=odd)).domain.specs == odd


@pytest.mark.parametrize(
    ("more", "unplugged"),
    [
        ("", {1, 2, 3}),
        ("<vcpus><vcpu id='1' enabled='no'/><vcpu id='2' enabled='yes'/></vcpus>", {1}),
        ("<vcpus><vcpu id='9' enabled='no'/><vcpu enabled='no'/></vcpus>", set()),
    ],
)
def test_vcpus_that_may_be_plugged_are_told_from_those_that_exist(more, unplugged):
    """By their number, or one by one: a flavor may book for any of them."""
    text = nova_xml(vcpus=4, current=1).replace("</vcpu>", f"</vcpu>{more}", 1)

    found = parse(text).domain

    assert (found.vcpus, found.unplugged, found.plugged) == (4, unplugged, 4 - len(unplugged))


@pytest.mark.parametrize(
    ("cputune", "limited"),
    [
        ("<quota>50000</quota><period>100000</period>", True),
        ("<shares>512</shares>", False),
        ("<quota>-1</quota>", False),
        ("<quota> -1 </quota>", False),
        ("<quota>0</quota>", False),
        ("<quota/>", False),
        ("<period>20000</period>", False),
        ("<emulator_quota>50000</emulator_quota>", False),
        ("<quota>17592186044415</quota>", True),
    ],
)
def test_quota_of_the_definition_belongs_to_libvirt(cputune, limited):
    """-1, 0 and a missing element mean no quota."""
    assert parse(nova_xml(cputune=cputune)).domain.limited_elsewhere is limited


FALLBACKS = (
    Fallback("web-*", {"amp:pref_core": "0.5"}),
    Fallback("*", {"amp:pref_core": "0.1", "amp:limit": "soft"}),
)


@pytest.mark.parametrize(
    ("name", "specs", "expected"),
    [
        ("web-1", None, {"amp:pref_core": "0.5"}),
        ("WEB-1", None, {"amp:pref_core": "0.1", "amp:limit": "soft"}),
        ("web-2", {"hw:x": "1"}, {"hw:x": "1", "amp:pref_core": "0.5"}),
        ("web-3", {"amp:weight": "2"}, {"amp:weight": "2"}),
        ("web-4", {"amplitude": "2"}, {"amplitude": "2", "amp:pref_core": "0.5"}),
    ],
)
def test_configured_booking_is_for_domains_without_one(name, specs, expected):
    """The first pattern that matches a domain without amp:* keys adds to its other keys."""
    assert parse(nova_xml(name, specs=specs), FALLBACKS).domain.specs == expected


def old_nova(package, flavor="m1.booked"):
    """A definition as Nova wrote it before it named extra specs."""
    metadata = f"""<nova:instance xmlns:nova="{NOVA}">
        <nova:package version="{package}"/><nova:flavor name="{flavor}"/></nova:instance>"""
    return nova_xml("instance-0000002a", metadata=metadata)


def test_configured_booking_is_for_a_flavor_or_a_domain():
    """By name: servers of one flavor have names of all kinds, and others have no flavor."""
    by_flavor, by_domain = Fallback("m1.*", {"amp:pref_core": "0.5"}), FALLBACKS[1]

    assert parse(old_nova("31.2.0"), [by_flavor, by_domain]).domain.specs == by_flavor.specs
    assert parse(nova_xml("web-1"), [by_flavor, by_domain]).domain.specs == by_domain.specs
    assert parse(nova_xml("instance-1"), [by_flavor]).domain.specs == {}


@pytest.mark.parametrize("package", ["29.4.0", "2:31.0.0-0ubuntu1", "23.2.3-17.1.el9ost", "8.1 A"])
def test_a_flavor_without_the_element_of_extra_specs_is_unknown(package):
    """Nova before 32.0 wrote none, whatever a distribution or a product calls it."""
    assert parse(old_nova(package)).domain.booking_unknown
    assert not parse(old_nova(package), FALLBACKS).domain.booking_unknown


@pytest.mark.parametrize("specs", [{}, {"hw:x": "1"}])
@pytest.mark.parametrize("package", ["34.0.0", "0.0.0"])
def test_a_flavor_with_that_element_is_known(package, specs):
    """Nova always writes it; from a clone without tags, its version is 0.0.0."""
    found = parse(nova_xml(metadata=nova_metadata(specs).replace("34.0.0", package))).domain

    assert (found.specs, found.booking_unknown) == (specs, False)


@pytest.mark.parametrize(
    "xml",
    [
        "",
        "<domain/>",
        "<html><body>502</body></html>",
        nova_xml(vcpus="two"),
        nova_xml(vcpus=0),
        nova_xml(vcpus="9" * 30),
        nova_xml(name=""),
        nova_xml(uuid=""),
        nova_xml(cpuset="all"),
        nova_xml(cpuset="0-99999999999"),
        nova_xml(cputune='<vcpupin vcpu="x" cpuset="1"/>'),
        nova_xml(metadata="<broken>"),
        nova_xml() + "\ud800",
    ],
)
def test_malformed_domain_is_a_value_error(xml):
    """Never another error, and never a huge allocation."""
    with pytest.raises(ValueError, match=r"."):
        parse(xml)


PCPUS = st.frozensets(st.integers(0, 300), min_size=1, max_size=9)
MARKS = st.builds(
    Mark,
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.integers(0, 40), st.builds(Pin, PCPUS, st.none() | PCPUS), max_size=4),
)
CPUTUNE = (
    "<shares>8192</shares><period>20000</period><quota>5000</quota>"
    '<vcpupin vcpu="0" cpuset="0"/><vcpupin vcpu="1" cpuset="2"/>'
)


def within(element):
    """A domain with this element in its metadata, as libvirt returns it."""
    text = element.replace("<tuning", f'<amp:tuning xmlns:amp="{MARK_URI}"').replace(
        "<pin", "<amp:pin"
    )
    text = text.replace("</tuning", "</amp:tuning")
    return nova_xml(metadata=text, cputune=CPUTUNE, cpuset="0-3")


@given(MARKS)
def test_what_is_written_is_read_again(made):
    """Whatever was set."""
    assert parse(within(made.xml())).mark == made


@pytest.mark.parametrize(
    "text",
    [
        "",
        '<tuning quota="maybe"/>',
        '<tuning quota="yes"><pin vcpu="x" cpuset="0"/></tuning>',
        '<tuning quota="yes"><pin vcpu="-1" cpuset="0"/></tuning>',
        '<tuning quota="yes"><pin vcpu="99999999999" cpuset="0"/></tuning>',
        '<tuning quota="yes"><pin vcpu="0" cpuset=""/></tuning>',
        '<tuning quota="yes"><pin vcpu="0" cpuset="0" before="a-b"/></tuning>',
    ],
)
def test_an_unreadable_mark_is_none(text):
    """What the definition has then counts as its own."""
    assert parse(within(text)).mark == NO_MARK


def test_what_amp_nova_set_is_not_the_definitions_own():
    """Neither quota nor shares; a pin is what it was before, also on another host."""
    pins = {0: Pin(frozenset({0}), None), 1: Pin(frozenset({2}), frozenset({2, 3}))}

    found = parse(within(Mark(quota=True, shares=True, pins=pins).xml()))

    assert not found.domain.limited_elsewhere
    assert not found.domain.weighted_elsewhere
    assert (found.cpuset, found.pins) == ({0, 1, 2, 3}, {1: {2, 3}})


def test_what_somebody_else_set_since_is():
    """A pin that is not the one that amp-nova set: Nova's or an operator's."""
    found = parse(within(Mark(pins={0: Pin(frozenset({3}), None)}).xml()))

    assert found.domain.limited_elsewhere
    assert found.domain.weighted_elsewhere
    assert found.pins == {0: {0}, 1: {2}}
