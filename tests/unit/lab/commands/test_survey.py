# SPDX-License-Identifier: Apache-2.0
"""``amp-nova survey`` as its user sees it."""

import base64
import contextlib
import json
import random
import re
import subprocess
import time
import urllib.parse
from collections import deque
from http.server import BaseHTTPRequestHandler

import pytest

from amp_nova_lab import cpu_use
from tests.support.monitoring import program, prometheus
from tests.support.tenant import reply, served
from tests.unit.lab.commands.refusals import refused

BOOKING = "m1.*=amp:pref_core=0.5"
USED = [0.1] * 10 + [0.2] * 5 + [0.4] + [0.9] * 4
"""Of the busiest vCPU, in means over 5 minutes."""


def info(name, flavor="m1.small", host="host1:9177", **more):
    """The labels of an instance, as the exporter of kumina and its successors has them."""
    return {
        "__name__": "libvirt_domain_info_meta",
        "instance": host,
        "domain": f"instance-{name}",
        "flavor": flavor,
        "instance_name": name,
        "project_name": "demo",
        "uuid": f"uuid-{name}",
        **more,
    }


class Fake:
    """Prometheus' HTTP interface on loopback, with these instances."""

    def __init__(self):
        self.infos = [info("web")]
        self.vcpus = 4
        self.used = {cpu_use.VCPU_TIME: USED, cpu_use.DOMAIN_TIME: [u / 2 for u in USED]}
        self.raw, self.location = None, ""
        """Status and body of every answer, in place of the right one, and where else it is."""
        self.asked, self.headers, self.form = deque(), {}, {}
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                fake.form = urllib.parse.parse_qs(body)
                query = fake.form["query"][0]
                fake.asked.append(query)
                fake.headers = dict(self.headers)
                status, answer = fake.raw or (200, fake.answer(query))
                with contextlib.suppress(OSError):  # the client has given up
                    reply(self, answer.encode(), status, Location=fake.location)

            def do_GET(self):
                fake.headers = dict(self.headers)
                self.send_error(404)

            def log_message(self, *_):
                pass

        with contextlib.ExitStack() as stack:
            self.url = stack.enter_context(served(Handler))
            self.close = stack.pop_all().close

    def answer(self, query):
        """A matrix as Prometheus writes it."""
        if query.startswith("{__name__"):
            found = [(labels, [1]) for labels in self.infos]
        elif query == cpu_use.VCPUS:
            found = [({**labels, "__name__": query}, [self.vcpus]) for labels in self.infos]
        else:
            counter = next(
                name for name in (cpu_use.VCPU_TIME, cpu_use.DOMAIN_TIME) if name in query
            )
            found = [
                ({k: i[k] for k in ("instance", "domain")}, self.used[counter]) for i in self.infos
            ]
        result = [
            {"metric": labels, "values": [[1.5e9 + 300 * n, str(v)] for n, v in enumerate(values)]}
            for labels, values in found
            if values
        ]
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


@pytest.fixture
def fake(monkeypatch):
    """A Prometheus that answers as the test says."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = Fake()
    yield made
    made.close()


@pytest.fixture
def survey(amp_nova, fake):
    """Runs the command on that Prometheus."""
    return lambda *words: amp_nova("survey", fake.url, *(words or ("--booking", BOOKING)))


@pytest.fixture
def document(survey):
    """What ``-f json`` prints."""

    def document_(*words):
        status, out, err = survey(*(words or ("--booking", BOOKING)), "-f", "json")
        assert (status, err) == (0, "")
        return json.loads(out)

    return document_


def test_the_table(survey, fake):
    """Every instance with what it used, and what it means for the flavor in one sentence."""
    fake.infos = [info("web"), info("db", host="host2:9177"), info("other", "c1.large")]

    status, out, err = survey()

    assert (status, err) == (0, "")
    row = next(line for line in out.splitlines() if "web" in line)
    cells = [c.strip() for c in row.strip("|").split("|")]
    # 4 of 20 means are 0.9: it waits 1 - 0.5 / 0.9 of that time if even, 0.45 / 0.95 if in bursts;
    # in bursts, the lower means wait, too.
    least, most = 0.2 * (1 - 0.5 / 0.9), sum(0.5 * u / (0.5 * u + 0.5) for u in USED) / 20
    shares = f"0.2 0.2 {least:.4g} {most:.4g}"
    assert " ".join(cells) == f"m1.small web 4 1.667 0.2 0.9 0.9 {shares}"
    assert "m1.small: 2 of 2 instances would feel 0.5 refcores a vCPU" in out
    assert "4 refcores booked in all" in out
    assert "c1.large" not in out


def test_the_labels_of_the_other_exporter(document, fake):
    """That of inovex calls flavor and UUID otherwise."""
    fake.infos = [
        {
            "__name__": "libvirt_domain_openstack_info",
            "instance": "host1:9177",
            "domain": "instance-1",
            "flavor_name": "m1.small",
            "instance_id": "1234",
            "instance_name": "web",
            "project_name": "demo",
        }
    ]

    (row,) = document()["instances"]

    assert [row[k] for k in ("flavor", "uuid", "instance", "vcpus")] == [
        "m1.small",
        "1234",
        "web",
        4,
    ]


@pytest.mark.parametrize("nothing", [[], [0.0] * 20, [0.1, "NaN"]])
def test_an_exporter_that_does_not_count_vcpus(document, fake, nothing):
    """The time of the domain counts, over its vCPUs."""
    fake.used[cpu_use.VCPU_TIME] = nothing

    (row,) = document()["instances"]

    assert row["max_cores"] == 0.45
    assert f") / max by (instance, domain) ({cpu_use.VCPUS}{{" in fake.asked[-1]


def test_the_worst_come_first_and_the_rest_is_counted(survey, fake, monkeypatch):
    """``--rows`` bounds the table, not the document."""
    fake.infos = [info(f"vm{n}") for n in range(5)]
    right = fake.answer

    def answer(query):
        found = json.loads(right(query))
        if "rate(" in query:
            for series in found["data"]["result"]:
                many = 2 * int(series["metric"]["domain"][-1])
                series["values"] = [[0, "0.9"]] * many + [[0, "0.1"]] * 10
        return json.dumps(found)

    monkeypatch.setattr(fake, "answer", answer)

    _, out, _ = survey("--booking", BOOKING, "--rows", "2")

    assert re.findall(r"vm\d", out) == ["vm4", "vm3", "vm4"]  # the last in the verdict
    assert "3 more rows: see --rows" in out
    assert "4 of 5 instances" in out


def test_the_first_booking_that_matches_applies(document, fake):
    """As in the configuration; each flavor is counted by itself."""
    fake.infos = [info("a", "m1.small"), info("b", "m1.large")]

    found = document(
        "--booking", "m1.small amp:pref_core=0.25 amp:limit=soft", "--booking", BOOKING
    )

    booked = {f["flavor"]: f["booked_refcores"] for f in found["flavors"]}
    assert booked == {"m1.small": 1.0, "m1.large": 2.0}
    assert {r["instance"]: r["refcores"] for r in found["instances"]} == {"a": 0.25, "b": 0.5}


def test_hostile_labels(survey, fake):
    """They reach neither the terminal nor the query except as text."""
    fake.infos = [
        info('\x1b[31mred"} or vector(1) #{use}', host="h|.*(", domain='d"\\{over}\n|x'),
        info("n" * 100_000),
        info("no flavor", flavor=""),
    ]

    status, out, err = survey()

    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "n" * 65 not in out
    assert "no flavor" not in out
    assert max(map(len, out.splitlines())) < 300
    assert r"h\\|\\.\\*\\(" in fake.asked[-1]


@pytest.mark.parametrize(("jump", "every"), [(9.6, 12), (1.2, 12), (1.6, 2)])
def test_a_counter_that_moves_seldom(survey, fake, jump, every):
    """An exporter that keeps an old value for many of its scrapes says nothing of 5 minutes."""
    right = fake.answer
    fake.infos.append(info("db"))
    fake.used[cpu_use.DOMAIN_TIME] = []

    def answer(query):
        found = json.loads(right(query))
        if "rate(" in query:
            found["data"]["result"] = found["data"]["result"][:1]
            found["data"]["result"] += json.loads(
                json.dumps(found["data"]["result"]).replace("instance-web", "instance-db")
            )
            stale = found["data"]["result"][-1:]
            for series in stale:
                series["values"] = [[n, str(jump if n % every == 1 else 0)] for n in range(24)]
        return json.dumps(found)

    fake.answer = answer

    status, out, _ = survey()

    assert (status, "web" in out, "db" in out) == (0, True, False)
    assert "without usable CPU time in Prometheus: 1 instances" in out


@pytest.mark.parametrize(
    ("booking", "said"),
    [
        ("m1.small", "it needs amp:pref_core for all vCPUs"),
        ("", "it needs amp:pref_core for all vCPUs"),
        ("m1.small=amp:pref_core=0", "'0' is not allowed"),
        ("m1.small=amp:pref_cores=1", "did you mean amp:pref_core"),
        ("m1.small=amp:pref_core.0=1", "it needs amp:pref_core for all vCPUs"),
        ("m1.small=amp:ips=1G", "it needs amp:pref_core for all vCPUs"),
        ("m1.small=amp:pref_core=1 hw:x=1", "it needs amp:pref_core for all vCPUs"),
    ],
)
def test_bookings_that_are_not_valid(survey, fake, booking, said):
    """One sentence, before anything is asked."""
    assert said in refused(survey("--booking", booking))
    assert not fake.asked


@pytest.mark.parametrize(
    "url",
    ["prometheus:9090", "http://", "http://u:p@x", "http://x:99999", "http://[x", "http://a b"],
)
def test_addresses_that_are_none(amp_nova, url):
    """And no request is made."""
    assert "write http://HOST:PORT" in refused(amp_nova("survey", url, "--booking", BOOKING))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            (422, '{"status":"error","error":"too many samples"}'),
            "answered 422: too many samples; ask for less with --days or a longer --step",
        ),
        ((200, "<html>"), "is not Prometheus: give the address of one"),
        (
            (200, '{"data": {"result": [{"metric": {}, "values": [[1, "x"]]}]}}'),
            "is not Prometheus: give the address of one",
        ),
    ],
)
def test_answers_that_are_errors_or_none(survey, fake, raw, said):
    """One sentence with the remedy; what else may come: tests/unit/test_prometheus.py."""
    fake.raw = raw

    assert said in refused(survey())


def test_no_whole_answer(survey, fake, monkeypatch):
    """A request ends, whatever Prometheus does: it is never done, or nothing listens."""
    monkeypatch.setattr(cpu_use, "BYTES_MAX", 1000)
    fake.raw = 200, "[" * 100_000
    assert "does not answer: more than" in refused(survey())

    fake.close()
    assert "check the address" in refused(survey())


def test_no_exporter(survey, fake):
    """It says what to install."""
    fake.infos = []
    said = refused(survey())
    assert "has no libvirt_domain_info_meta and no libvirt_domain_openstack_info" in said
    assert "install prometheus-libvirt-exporter" in said

    fake.infos, fake.used = [info("web")], {name: [] for name in fake.used}
    said = refused(survey())
    assert "no rate of libvirt_domain_vcpu_time_seconds_total or" in said
    assert "install prometheus-libvirt-exporter" in said


def test_no_such_flavor(survey):
    """It names those that there are."""
    said = refused(survey("--booking", "m2.*=amp:pref_core=1"))

    assert "the flavors are m1.small" in said


def test_too_many_steps(survey, fake):
    """They are refused before anything is asked, and so is a time that is none."""
    assert "steps of 10 s" in refused(survey("--booking", BOOKING, "--days", "7", "--step", "10"))
    assert "is not a number from 0.01" in refused(survey("--booking", BOOKING, "--days", "nan"))
    assert not fake.asked


def test_a_password_from_netrc(survey, fake, tmp_path, monkeypatch):
    """As curl and others read it."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (tmp_path / ".netrc").chmod(0o600)

    assert survey()[0] == 0
    assert fake.headers["Authorization"] == f"Basic {base64.b64encode(b'me:secret').decode()}"

    elsewhere = Fake()  # an answer that leads there does not take it there
    fake.raw, fake.location = (302, ""), elsewhere.url
    assert "answered 302: Found" in refused(survey())
    elsewhere.close()
    assert elsewhere.headers == {}

    (tmp_path / ".netrc").write_text("nonsense\n")
    assert "~/.netrc is not valid" in refused(survey())


def test_the_picture(survey, fake, tmp_path):
    """It has the flavors, with the booking; a name is text and no formula."""
    pytest.importorskip("matplotlib")
    fake.infos, path = [info("a", "m1.$x^$"), info("b", "m1.small")], tmp_path / "survey.svg"

    status, _, err = survey("--booking", BOOKING, "--coefficient", "2", "--plot", path)

    assert (status, err) == (0, "")
    content = path.read_text()
    assert "m1.$x^$: " in content
    assert "booking: 0.5 refcores" in content


# A synthetic cloud in a real Prometheus.

MINUTES = 24 * 60
GUESTS = 20


def history(rng):
    """The use of a vCPU in every minute: levels that last for about an hour and a half."""
    used = []
    while len(used) < MINUTES:
        used += [rng.choice((0.05, 0.2, 0.35, 0.8, 0.95))] * (1 + int(rng.expovariate(1 / 90)))
    return used[:MINUTES]


def throttled(used, limit, *, steady):
    """The share of time that a vCPU waits for its limit, by minute; bursty: it wants a whole core
    in ``used`` of the periods."""
    if steady:
        return max(0.0, 1 - limit / used)
    return used * (1 - limit) / (used + limit * (1 - used))


@pytest.fixture
def cloud(tmp_path, monkeypatch):
    """A real Prometheus with a day of 20 instances; its address, and what each vCPU used."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    rng, end = random.Random(1), int(time.time()) // 60 * 60
    used = {n: [history(rng), history(rng)] for n in range(GUESTS)}
    lines = []
    for n, vcpus in used.items():
        where = f'instance="host{n // 5}:9177",domain="instance-{n}"'
        meta = f'flavor="m1.small",instance_name="vm{n}",project_name="p",uuid="{n}"'
        sums = [5e6 * rng.random() for _ in vcpus]
        for minute in range(MINUTES):
            at = end - 60 * (MINUTES - 1 - minute)
            for v, vcpu in enumerate(vcpus):
                sums[v] += 60 * vcpu[minute]
                lines.append(f'{cpu_use.VCPU_TIME}{{{where},vcpu="{v}"}} {sums[v]:.2f} {at}')
            if minute % 4 == 3 or minute == MINUTES - 1:
                lines.append(f"libvirt_domain_info_meta{{{where},{meta}}} 1 {at}")
                lines.append(f"{cpu_use.VCPUS}{{{where}}} 2 {at}")
    data = tmp_path / "text"
    data.write_text("\n".join((*lines, "# EOF\n")))
    tool = [program("promtool"), "tsdb", "create-blocks-from", "openmetrics", "-q"]
    subprocess.run([*tool, data, tmp_path / "data"], check=True, capture_output=True)
    with prometheus(tmp_path, {"global": {}}) as url:
        yield url, used


def test_what_a_real_prometheus_says_is_what_happened(amp_nova, cloud):
    """For 20 instances, within 5 % of the truth by minute; means over 5 minutes hide a little."""
    url, used = cloud
    limit = 0.5

    status, out, err = amp_nova(
        "survey", url, "--booking", BOOKING, "--days", "1", "--coefficient", "2", "-f", "json"
    )

    assert (status, err) == (0, "")
    found = {row["instance"]: row for row in json.loads(out)["instances"]}
    assert len(found) == GUESTS
    for n, vcpus in used.items():
        row, busiest = found[f"vm{n}"], [max(pair) for pair in zip(*vcpus, strict=True)]
        truth = {
            "over_ratio": [u > limit for u in busiest],
            "over_most_ratio": [u > limit / 2 for u in busiest],
            "throttled_ratio": [throttled(u, limit, steady=True) for u in busiest],
            "throttled_most_ratio": [throttled(u, limit / 2, steady=False) for u in busiest],
        }
        for key, shares in truth.items():
            assert row[key] == pytest.approx(sum(shares) / MINUTES, rel=0.05), (n, key)
        below, at_most = (
            sum(u <= row["median_cores"] + d for u in busiest) / MINUTES for d in (-0.01, 0.01)
        )
        assert below <= 0.52
        assert at_most >= 0.48
        assert row["max_cores"] == pytest.approx(max(busiest), rel=0.01)
        assert 23 < row["hours"] <= 24.1
