"""What amp-nova notes in a domain's metadata about the CPU tuning that it set."""

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amp_nova.host.libvirt import mark
from amp_nova.host.libvirt.domain_xml import parse
from amp_nova.host.libvirt.mark import NO_MARK, URI, Mark, Pin
from tests.fakehost import nova_xml

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
    text = element.replace("<tuning", f'<amp:tuning xmlns:amp="{URI}"').replace("<pin", "<amp:pin")
    text = text.replace("</tuning", "</amp:tuning")
    return nova_xml(metadata=text, cputune=CPUTUNE, cpuset="0-3")


@given(MARKS)
def test_what_is_written_is_read_again(made):
    """Whatever was set."""
    assert mark.read(ET.fromstring(within(made.xml()))) == made


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
    assert mark.read(ET.fromstring(within(text))) == NO_MARK


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
