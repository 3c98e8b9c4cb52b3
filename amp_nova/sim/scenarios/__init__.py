"""Scenario files: parsing, validation, and the workloads they describe."""
