# SPDX-License-Identifier: Apache-2.0
"""What the agent publishes: Prometheus metrics, its page, host reports, Placement inventories.

Publishers read the record of the last cycle and never influence the next one.
"""
