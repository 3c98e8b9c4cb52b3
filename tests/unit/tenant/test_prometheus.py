# SPDX-License-Identifier: Apache-2.0
"""The query: answers in time, and empty ones for whatever goes wrong."""

import json
import logging
import threading
import time
from datetime import UTC, datetime

import pytest

from amp_nova.tenant import prometheus
from amp_nova.tenant.prometheus import ServerFigures
from tests.support.programs import until
from tests.support.tenant import PROJECT, SERVER, half, reply, series, settings

IN_TIME_S = 0.2
LATE_S = 1.0
"""More than that and what threads of a busy machine wait."""
RIGHT = json.dumps({"data": {"result": half()}}).encode()


def source(fake):
    return ServerFigures(settings(fake.url))


@pytest.mark.parametrize(
    ("before_s", "steps", "age_s"),
    [(7.0, 30, pytest.approx(7, abs=0.5)), (200.0, 8, pytest.approx(200, abs=1)), (-1.0, 30, 0)],
    ids=["scraped", "not scraped any more", "Prometheus' clock is ahead"],
)
def test_figures_say_how_old_they_are_and_where_they_come_from(fake, before_s, steps, age_s):
    """Age and time of the last sample."""
    fake.samples = half(until_s=time.time() - before_s, steps=steps)

    known = source(fake).figures(SERVER, PROJECT)

    assert (known["source"], known["age_s"]) == ("prometheus", age_s)
    age = datetime.now(UTC) - datetime.fromisoformat(known["measured_at"])
    assert age.total_seconds() == pytest.approx(before_s, abs=1.5)
    assert (known["booked_refcores"], known["coefficient"]) == (0.5, 2.0)
    assert "measured_s" not in known


def test_figures_are_reused_and_their_age_grows(fake, monkeypatch):
    """Two queries, whoever asks, until ``CACHE_S`` is over."""
    monkeypatch.setattr(prometheus, "CACHE_S", 0.5)
    asked = source(fake)
    first = asked.figures(SERVER, PROJECT)
    time.sleep(0.2)
    second = asked.figures(SERVER, PROJECT)

    assert len(fake.asked) == 2
    assert second["age_s"] >= first["age_s"] + 0.1
    time.sleep(0.4)
    asked.figures(SERVER, PROJECT)
    assert len(fake.asked) == 4


def test_those_who_ask_at_the_same_time_share_one_answer(fake):
    """A guest cannot multiply the load on Prometheus."""
    asked, answers = source(fake), []
    threads = [
        threading.Thread(target=lambda: answers.append(asked.figures(SERVER, PROJECT)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(fake.asked) == 2
    assert all(a["booked_refcores"] == 0.5 for a in answers)


def slow(handler):
    time.sleep(LATE_S / 2)  # for each of two queries
    reply(handler, RIGHT)


def test_a_late_answer_is_empty_and_serves_the_next_request(fake, monkeypatch):
    """Nobody waits longer than 200 ms."""
    monkeypatch.setattr(prometheus, "ANSWER_S", IN_TIME_S)
    monkeypatch.setattr(prometheus, "CACHE_S", 60.0)
    fake.respond, asked = slow, source(fake)

    started = time.monotonic()
    assert asked.figures(SERVER, PROJECT) == {}
    assert time.monotonic() - started < LATE_S
    until(lambda: asked.figures(SERVER, PROJECT), 10, "the late answer")
    assert len(fake.asked) == 2


def huge(handler):
    reply(handler, RIGHT + b" " * (2 << 20))


BAD = {
    "huge": huge,
    "closed": lambda handler: handler.connection.close(),
    "error": lambda handler: reply(handler, b'{"status": "error"}', 503),
    "no JSON": lambda handler: reply(handler, b"<html>"),
    "no data": lambda handler: reply(handler, b"{}"),
    "another type": lambda handler: reply(handler, b'{"data": {"result": [1]}}'),
    "no numbers": lambda handler: reply(
        handler, json.dumps({"data": {"result": [series("x", ["many"])]}}).encode()
    ),
    "no series": lambda handler: reply(handler, b'{"data": {"result": []}}'),
    "beyond time": lambda handler: reply(
        handler,
        json.dumps({"data": {"result": [series("x", [1], until_s=1e300)]}}).encode(),
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_whatever_goes_wrong_the_answer_is_empty_and_in_time(fake, monkeypatch, bad):
    """And the next one is right as soon as Prometheus is."""
    monkeypatch.setattr(prometheus, "ANSWER_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(prometheus, "ANSWER_S", IN_TIME_S)
    monkeypatch.setattr(prometheus, "CACHE_S", 0.1)
    fake.respond, asked = BAD[bad], source(fake)

    started = time.monotonic()
    assert asked.figures(SERVER, PROJECT) == {}
    assert time.monotonic() - started < LATE_S
    fake.respond = None
    until(lambda: asked.figures(SERVER, PROJECT), 10, "the right answer")


def test_no_prometheus_is_logged_once(caplog):
    """Not once per request of every guest."""
    caplog.set_level(logging.WARNING, prometheus.__name__)
    asked = ServerFigures(settings())

    for number in range(5):
        assert asked.figures(SERVER, f"project-{number}") == {}

    assert caplog.text.count("answers are empty: Prometheus failed") == 1


def test_the_log_shows_no_password(fake, caplog):
    """Whichever way Prometheus fails, the address in the log is without it."""
    for respond in (BAD["error"], BAD["closed"], BAD["no JSON"]):
        fake.respond = respond
        url = fake.url.replace("//", "//user:secret@")
        assert ServerFigures(settings(url)).figures(SERVER, PROJECT) == {}

    assert caplog.text.count("Prometheus failed") == 3
    assert "secret" not in caplog.text
