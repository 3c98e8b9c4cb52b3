"""The agent's page as HTML; how it is laid out is seen in a browser (tests/integration)."""

import html.parser
import re
import urllib.request
from dataclasses import replace

import pytest

from amp_nova.agent.loop import Loop
from amp_nova.agent.publish import history, page
from amp_nova.agent.publish.charts import figure, nice_top
from amp_nova.agent.publish.exporter import Exporter
from amp_nova.agent.publish.history import History
from amp_nova.agent.publish.host_info import HostInfo
from amp_nova.agent.publish.page import View, render
from amp_nova.sim.host import SimHost
from tests import reports
from tests.reports import best_effort, booked, instance
from tests.unit.sim.builders import guest, topology

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


def view(*guests, seconds=60, admits=True, **host):
    """A host with these guests, after so many seconds."""
    simulated = SimHost(topology(**host), guests)
    loop = Loop(simulated, simulated, stopwatch=lambda: 0.0)
    past = History()
    for second in range(seconds):
        simulated.advance(float(second))
        cycle = loop.cycle()
        past = history.advance(past, cycle, NOW_S - seconds + 1 + second)
    info = HostInfo("host") if admits else None
    return View("compute-7", "1.2.3", NOW_S, cycle, past, NOW_S, True, info)


def document(found):
    """The page of a view, parsed; every element is closed."""
    return Document(render(found))


def of_cycle(*domains, **said):
    """A view of one cycle with these domains."""
    cycle = reports.cycle(*domains)
    past = history.advance(History(), cycle, NOW_S)
    return View("compute-7", "1.2.3", NOW_S, cycle, past, NOW_S, True, **said)


def test_it_says_first_whether_bookings_are_kept():
    """One sentence, before any figure."""
    found = document(view(guest("web", pref_core="0.5"), guest("db", pref_core="1.5")))

    assert found.words.index("Every booking is kept.") < found.words.index("refcores")
    assert "amp-nova on compute-7" in found.words


def test_it_shows_what_is_booked_delivered_and_left():
    """Of the host and of each instance."""
    words = document(view(guest("web", pref_core="0.5"), guest("db", pref_core="1.5"))).words

    assert "Booked 2 refcores" in words
    assert "Can be booked 1 refcores 0.5 fast, 0.5 slow" in words
    assert "1.5 of 1.5 refcores" in words
    assert "all booked capacity that was in demand was delivered" in words


def test_it_shows_who_runs_on_which_pcpu():
    """By core type, the fastest first, with the share that each vCPU books."""
    found = view(guest("web", pref_core="0.5"), guest("db", pref_core="1.5"), guest("batch"))
    words = document(found).words
    cores = words[words.index("Cores, and who runs on them") :]

    assert cores.index("fast pCPUs 0") < cores.index("db/0 75%") < cores.index("slow pCPUs 1")
    assert cores.index("slow pCPUs 1") < cores.index("web/0 50%")
    assert "batch/0 best effort" in cores


def test_a_guest_that_wants_less_is_not_short():
    """It gets less than it books because it does not want more."""
    words = document(view(guest(pref_core="0.5", utilization=0.1))).words

    assert "refcores, all it wanted" in words
    assert "The booking is kept." in words


def test_over_booking_is_said_in_words_and_shown_by_cause():
    """The instance comes first, with its reason; the shortfall has a chart."""
    found = view(*(guest(name, pref_core="2") for name in ("a", "b", "c")))
    words = document(found).words

    assert "Not kept as booked: " in words
    assert "vCPU 0: over-booked: no pCPU that it may use has 2 reference cores free." in words
    assert "Not delivered, by cause" in words
    assert re.search('polygon class="(core_type|contention|throttle)"', render(found))


def test_changes_are_listed_with_their_reasons():
    """What was done to whom, when and why."""
    words = document(view(guest("web", pref_core="0.5"))).words

    assert re.search(
        r"Recent changes .* web vCPU 0 .*quota \d+/\d+ us, then pCPUs 1 0.5 refcores / 1 on slow",
        words,
    )


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({"cycle": None}, "No control cycle has succeeded yet; the agent's log says why."),
        ({"hypervisor_up": False}, "libvirt does not answer. This is the host at 08:00:00."),
        ({"now_s": NOW_S + 90}, "The last control cycle succeeded at 08:00:00."),
    ],
)
def test_trouble_of_the_agent_itself_comes_first(said, expected):
    """Old figures are not shown as if they were new."""
    found = replace(view(guest(pref_core="0.5"), seconds=4), **said)

    assert expected in document(found).words


def test_a_host_without_instances():
    """Nothing is wrong with it."""
    words = document(of_cycle()).words

    assert "There is no booking on this host." in words
    assert "None since the agent started." in words


def test_best_effort_that_is_not_measured_has_no_figure():
    """Unknown is not nothing."""
    words = document(of_cycle(instance(best_effort()))).words

    assert "my instance-00000001 m1.half best effort" in words


def test_names_cannot_inject_markup():
    """Tenants choose names; whatever they write is shown as it is."""
    name = "<script>alert('x')</script>\"&"
    found = of_cycle(instance(booked(), display_name=name, flavor=name, problem=name))
    text = render(found)

    assert "<script" not in text
    assert name in Document(text).words


def test_it_needs_nothing_but_itself():
    """No script, and nothing to load: also the policy in its head says so."""
    found = document(view(guest(pref_core="0.5")))
    loading = {"script", "link", "img", "iframe", "object", "embed"}

    assert not loading & {tag for tag, _ in found.elements}
    links = [a["href"] for tag, a in found.elements if tag == "a"]
    assert links == ["/metrics"]
    assert "url(" not in render(view(guest(pref_core="0.5"), seconds=2))
    assert ("meta", {"http-equiv": "Content-Security-Policy", "content": page.POLICY}) in (
        found.elements
    )


def test_many_instances_are_a_table():
    """The first ones have charts; the page stays small enough to load every few seconds."""
    found = of_cycle(*(instance(booked(), name=f"vm-{i:03}") for i in range(300)))
    text = render(found)

    assert "276 more instances" in text
    assert text.count("<article") == 24
    assert len(text) < 300_000


def test_every_chart_is_described_in_words():
    """For those who do not see it."""
    found = document(view(guest("web", pref_core="0.5")))
    charts = [a for tag, a in found.elements if tag == "svg" and a.get("role") == "img"]

    assert charts
    assert all(c["aria-label"] for c in charts)
    assert any("web: 0.5 of 0.5 refcores" in c["aria-label"] for c in charts)


@pytest.mark.parametrize(
    ("value", "top"),
    [(0.0, 1.0), (0.45, 0.5), (1.0, 1.0), (1.01, 1.2), (7.0, 8.0), (83.0, 100.0), (2.4e9, 3e9)],
)
def test_axes_end_at_round_numbers(value, top):
    """At least as large as what is shown."""
    assert nice_top(value) == pytest.approx(top)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.5, "0.5"), (0.12345, "0.123"), (4127.3, "4127"), (25000, "25 k"), (1.2e9, "1.2 G")],
)
def test_figures_are_short(number, text):
    """Three significant digits, and a prefix for large ones."""
    assert figure(number) == text


class TestServed:
    """By the exporter, next to the metrics."""

    @pytest.fixture
    def exporter(self):
        """At a time that stands still."""
        return Exporter(clock=lambda: NOW_S)

    def test_it_is_there_before_the_first_cycle(self, exporter):
        """It says so."""
        assert "No control cycle has succeeded yet" in exporter.front("").body.decode()

    def test_it_shows_the_last_cycle(self, exporter):
        """Made once for each cycle, however many ask."""
        exporter.update(reports.cycle(instance(booked(), display_name="first")))
        first = exporter.front("").body
        assert exporter.front("").body is first
        exporter.update(reports.cycle(instance(booked(), display_name="second")))

        assert b"first" in first
        assert b"second" in exporter.front("").body

    def test_a_history_that_fails_does_not_stop_the_agent(self, exporter, monkeypatch, caplog):
        """Cycles and metrics go on; the page's history starts again."""
        monkeypatch.setattr(history, "advance", lambda *_: 1 / 0)

        for _ in range(3):
            exporter.update(reports.cycle(instance(booked())))

        assert caplog.text.count("the page's history starts again") == 1
        assert b"my instance-00000001" in exporter.front("").body

    def test_it_is_at_the_root(self, exporter):
        """As HTML that may load nothing; metrics stay where they were."""
        address, port = exporter.start_http("127.0.0.1", 0)
        with urllib.request.urlopen(f"http://{address}:{port}/", timeout=10) as answer:
            assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
            assert answer.headers["Content-Security-Policy"] == page.POLICY
            assert answer.read().startswith(b"<!doctype html>")
        with urllib.request.urlopen(f"http://{address}:{port}/metrics", timeout=10) as answer:
            assert b"amp_build_info" in answer.read()
