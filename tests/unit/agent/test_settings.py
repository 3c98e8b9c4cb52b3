"""The options that say whose own coefficients convert its booking."""

import pytest

from amp_nova.agent import settings
from amp_nova.agent.state.bookings import Choice
from amp_nova.exceptions import ConfigInvalid


@pytest.mark.parametrize("line", ["", "web-*", "web-* own", "web-* adaptive fixed"])
def test_a_line_that_cannot_be_used_is_named(line):
    """In one sentence that says what to write."""
    with pytest.raises(ConfigInvalid, match="write PATTERN fixed or PATTERN adaptive") as caught:
        settings.choice("fixed", ["vm-* adaptive", line])

    assert f"coefficients_of = {line} is" in str(caught.value)


def test_lines_are_exceptions_from_the_default():
    """In their order."""
    assert settings.choice("adaptive", ["web-* fixed", "* adaptive"]) == Choice(
        True, (("web-*", False), ("*", True))
    )
