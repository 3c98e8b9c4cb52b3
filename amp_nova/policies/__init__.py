# SPDX-License-Identifier: Apache-2.0
"""Which best-effort vCPUs get the fast cores that bookings leave: one module per published policy.

``api`` is the interface a policy implements; ``placing`` holds the mechanisms that policies share.
Policies place best-effort vCPUs only. They are pure functions: no I/O, no clock, no state.
"""
