# SPDX-License-Identifier: Apache-2.0
"""Runs the commands as a user does."""

from tests.unit.cmd.conftest import amp as amp_nova

__all__ = ["amp_nova"]
