# SPDX-License-Identifier: Apache-2.0
"""Settings that all tests share."""

import logging
import os
import signal
import sys
from collections.abc import Iterator

import hypothesis
import pytest

from tests.properties.examples import DEFAULT, examples
from tests.support.fault_table import (  # noqa: F401 - pytest finds them by name
    pytest_collection_modifyitems,
    pytest_sessionfinish,
    pytest_terminal_summary,
)

# A run that is told to stop ends as after Ctrl-C: its guests, agents and slow cores go with it.
signal.signal(signal.SIGTERM, signal.default_int_handler)
# A background job of a shell ignores SIGINT, and so would the processes that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Hundreds of processes import the same modules: compile them once, as an installation does.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples in every run: a change is judged by what it changes, not by the draw. Seek new
# examples with "tools/test tests/properties --hypothesis-profile=search".
hypothesis.settings.register_profile(
    "fixed", derandomize=True, deadline=None, max_examples=examples(DEFAULT)
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    """A command that sets up the root logger does so for its own test only."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
