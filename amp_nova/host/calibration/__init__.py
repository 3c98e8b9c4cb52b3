# SPDX-License-Identifier: Apache-2.0
"""Runs calibrations: the load, the idle check, and the calibration file."""
