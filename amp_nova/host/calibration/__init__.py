"""Measures what core types are worth: workloads, idle checks, and the calibration file."""
