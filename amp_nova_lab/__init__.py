# SPDX-License-Identifier: Apache-2.0
"""A simulated host under the agent's own control loop: runs scenarios and reproduces the papers.

This package provides the sensor and the actuator. It decides nothing: every limit, affinity and
policy decision is made by the code that the agent runs.
"""
