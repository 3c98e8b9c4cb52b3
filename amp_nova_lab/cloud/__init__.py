# SPDX-License-Identifier: Apache-2.0
"""A whole cloud in simulated time: arrivals, placement by the scheduler's functions, departures.

Nothing here runs an agent or divides a pCPU: a host is what its report says.
"""
