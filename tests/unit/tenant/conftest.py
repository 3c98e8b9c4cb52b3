"""A fake Prometheus over loopback, and the service in front of it."""

import pytest

from tests.support.tenant import FakePrometheus


@pytest.fixture
def fake():
    """A fake Prometheus with the series of one busy server; ``url`` is its address."""
    made = FakePrometheus()
    with made.serving() as made.url:
        yield made
