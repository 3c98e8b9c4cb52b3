# SPDX-License-Identifier: Apache-2.0
"""What fits on a host: bin packing of booked vCPUs onto pCPUs, and the headroom that is left.

The agent, Nova's scheduler and the simulator call the same functions. ``control`` sets the limits.
"""
