# SPDX-License-Identifier: Apache-2.0
"""The agent's page as HTML; how it is laid out is seen in a browser (tests/integration)."""

import html.parser
import re
from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import snapshot
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.host_info import AgentStatus, HostInfo
from amp_nova.agent.publish.host_warnings import HostWarning
from amp_nova.agent.publish.page import View, figure, render
from amp_nova.agent.publish.snapshot import History
from amp_nova_lab.host import SimHost
from tests.support import reports
from tests.support.reports import best_effort, booked, instance
from tests.unit.lab.builders import guest, topology

NOW_S = 1_800_000_000.0


class Document(html.parser.HTMLParser):
    """The words of a page, and its elements with their attributes."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.parts = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.parts.append(data)

    @property
    def words(self):
        """All text, with single spaces."""
        return re.sub(r"\s+", " ", " ".join(self.parts))


AWAY = AgentStatus(last_success_s=NOW_S, hypervisor_up=False)


def view(*guests, seconds=60, admits=True, **host):
    """A host with these guests, after so many seconds."""
    simulated = SimHost(topology(**host), guests)
    loop = Loop(simulated, simulated, stopwatch=lambda: 0.0)
    past = History()
    for second in range(seconds):
        simulated.advance(float(second))
        cycle = loop.cycle()
        past = snapshot.advance(past, cycle, NOW_S - seconds + 1 + second)
    info = HostInfo("compute-7") if admits else None
    return View(AgentStatus(last_success_s=NOW_S, hypervisor_up=True), NOW_S, cycle, past, info)


def document(found):
    """The page of a view, parsed; every element is closed."""
    return Document(render(found))


def of_cycle(*domains, **said):
    """A view of one cycle with these domains."""
    cycle = reports.cycle(*domains)
    past = snapshot.advance(History(), cycle, NOW_S)
    return View(AgentStatus(last_success_s=NOW_S, hypervisor_up=True, **said), NOW_S, cycle, past)


def test_a_good_host_at_a_glance():
    """The verdict before any figure, each with what it is a part of; then who runs where.

    Core types are in order, the fastest first, and every chart is described in words.
    """
    found = document(
        view(guest("web", pref_core="0.5"), guest("db", pref_core="1.5"), guest("batch"))
    )
    words = found.words

    assert "amp-nova on compute-7" in words
    assert words.index("✓ All bookings are kept.") < words.index("refcores")
    assert "Short 0 of 2 booked instances, and 1 best effort" in words
    assert "Booked 2 of 3 refcores; left: 0.5 fast, 0.5 slow" in words
    assert "Delivered now 2 of 2 refcores booked" in words
    assert re.search(r"Not delivered 0\S* of 1\d\d refcore s booked, last 1 min", words)
    assert "1.5 of 1.5 refcores" in words
    cores = words[words.index("Cores, and who runs on them") :]
    assert cores.index("fast , 1 pCPUs") < cores.index("db/0 75%") < cores.index("slow , 1 pCPUs")
    assert cores.index("slow , 1 pCPUs") < cores.index("web/0 50%")
    assert "batch/0 best effort" in cores
    charts = [a["aria-label"] for tag, a in found.elements if tag == "svg"]
    assert [c.partition(": ")[0] for c in charts] == ["batch", "db", "web"]
    assert "web: 0.5 of 0.5 refcores" in charts


@pytest.mark.parametrize(
    ("pcpus", "why"),
    [
        ({2}, "bookings fill one pCPU before the next, to keep whole pCPUs for larger bookings"),
        ({2, 3}, "they may use every pCPU of this type, and the kernel put them there"),
    ],
)
def test_it_says_why_bookings_share_a_pcpu_while_another_is_free(pcpus, why):
    """Which depends on whether they are pinned."""
    two = [instance(booked(reading=reports.reading(pcpus=pcpus)), name=n) for n in ("a", "b")]

    assert f"Bookings share pCPU 2 while 3 is free: {why}." in document(of_cycle(*two)).words
    assert "Bookings share" not in document(of_cycle(two[0])).words
    assert "There is no booking on this host." in document(of_cycle()).words


def test_a_guest_that_wants_less_is_not_short():
    """It gets less than it books because it does not want more."""
    words = document(view(guest(pref_core="0.5", utilization=0.1))).words

    assert "refcores, all it wanted" in words
    assert "All bookings are kept." in words


def test_over_booking_is_said_in_words_and_shown_by_cause():
    """The instance comes first, with its reason; colours have their names beside them."""
    found = view(guest("fits", pref_core="0.1"), *(guest(n, pref_core="2") for n in ("a", "b")))
    words = document(found).words

    assert "✗ Bookings of 1 of 3 instances are not kept." in words
    assert "vCPU 0: over-booked: no pCPU that it may use has 2 reference cores free" in words
    assert re.search(r"; lost mostly to [a-z ]+ \([a-z ]+\)\.", words)
    assert re.search(r"not delivered: (core type|contention|throttle) \(", words)
    assert re.search('path class="(core_type|contention|throttle)"', render(found))
    table = words[words.index("worst first") :]
    assert table.index(" b ") < min(table.index(" a "), table.index(" fits "))


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"cycle": None}, "No control cycle has succeeded yet; the agent's log says why."),
        ({"agent": AWAY}, "libvirt does not answer. This is the host at 08:00:00."),
        ({"now_s": NOW_S + 90}, "The last control cycle succeeded at 08:00:00."),
    ],
)
def test_trouble_of_the_agent_itself_comes_first(said, expected):
    """Old figures are not shown as if they were new."""
    found = replace(view(guest(pref_core="0.5"), seconds=4), **said)

    assert expected in document(found).words


def test_warnings_about_the_host_are_said_beside_the_verdict():
    """Bookings may be kept while schedulers place no more of them."""
    warning = HostWarning("no_reports", "schedulers hear <nothing>")
    found = of_cycle(instance(best_effort()), warnings=(warning,))

    assert "There is no booking on this host. Schedulers hear <nothing>." in document(found).words


def test_names_cannot_inject_markup():
    """Tenants choose names; whatever they write is shown as it is."""
    name = "<script>alert('x')</script>\"&"
    found = of_cycle(instance(booked(), display_name=name, flavor=name, problem=name))
    text = render(found)

    assert "<script" not in text
    assert name in Document(text).words


def test_it_needs_nothing_but_itself():
    """No script, and nothing to load."""
    found = document(view(guest(pref_core="0.5")))
    loading = {"script", "link", "img", "iframe", "object", "embed"}

    assert not loading & {tag for tag, _ in found.elements}
    links = [a["href"] for tag, a in found.elements if tag == "a"]
    assert links == ["/metrics"]
    assert "url(" not in render(view(guest(pref_core="0.5"), seconds=2))


def test_a_hundred_instances_are_one_table():
    """The banner names a few; the page stays small enough to load every few seconds."""
    found = of_cycle(*(instance(booked(), name=f"vm-{i:03}", problem="it is") for i in range(100)))
    text = render(found)

    assert "✗ Bookings of 100 of 100 instances are not kept." in text
    assert "<li>and 95 more</li>" in text
    assert text.count("<tr><td>") == text.count("<tr><td><b>") == 100
    assert len(text) < 100_000


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.5"), (0.12345, "0.123"), (4127.3, "4127"), (25000, "25 k"), (1.2e9, "1.2 G")],
)
def test_figures_are_short(number, text):
    """Three significant digits, and a prefix for large ones."""
    assert figure(number) == text


def test_the_exporter_shows_the_last_cycle():
    """Made once for each cycle, and only when somebody asks; before the first it says so."""
    exporter = Exporter(clock=lambda: NOW_S)
    assert b"No control cycle has succeeded yet" in exporter.front().body
    exporter.update(reports.cycle(instance(booked(), display_name="first")))
    first = exporter.front().body
    assert exporter.front().body is first
    exporter.update(reports.cycle(instance(booked(), display_name="second")))

    assert b"first" in first
    assert b"second" in exporter.front().body
