"""Runs calibrations: the load, the idle check, and the calibration file."""
