# SPDX-License-Identifier: Apache-2.0
"""What scheduler workers tell each other."""

import pytest

from amp_nova.exceptions import ReportInvalid
from amp_nova.wire import decision
from amp_nova.wire.decision import Reservation


def test_it_arrives_as_it_was_sent_unless_it_is_too_long():
    """Anybody who can send messages may send one of any size."""
    sent = Reservation("worker", 1, "tentative", "uuid", "node")
    text = decision.encode(sent)

    assert decision.decode(text + " ") == sent
    with pytest.raises(ReportInvalid):
        decision.decode(text + " " * decision.CHARACTERS_MAX)
