# SPDX-License-Identifier: Apache-2.0
"""Scenario files: reading, validation, and the workloads they describe.

Nothing here knows how a scenario is run.
"""
