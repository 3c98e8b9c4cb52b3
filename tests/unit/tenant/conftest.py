# SPDX-License-Identifier: Apache-2.0
"""A fake Prometheus over loopback, and the service in front of it."""

import pytest

from amp_nova.tenant import prometheus
from tests.support.tenant import FakePrometheus


@pytest.fixture
def fake(monkeypatch):
    """A fake Prometheus with the series of one busy server; ``url`` is its address.

    It has time: the machine is busy with other tests.
    """
    monkeypatch.setattr(prometheus, "ANSWER_S", 5.0)
    made = FakePrometheus()
    with made.serving() as made.url:
        yield made
