# SPDX-License-Identifier: Apache-2.0
"""A machine and its calibration file."""

import pytest

from amp_nova.host.calibration.file import write
from tests.support.calibrations import build, machine_files


@pytest.fixture
def root(tmp_path):
    """The files of a machine."""
    return machine_files(tmp_path / "root")


@pytest.fixture
def file(tmp_path, root):
    """The calibration file of that machine."""
    path = tmp_path / "calibration.json"
    write(path, [build(root)])
    return path
