# SPDX-License-Identifier: Apache-2.0
"""What was delivered: delivered over booked capacity, shortfall by cause, slowdown.

Results come from what vCPUs ran, never from what was configured. This package decides nothing.
"""
