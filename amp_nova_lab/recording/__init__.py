# SPDX-License-Identifier: Apache-2.0
"""What a host's instances did, as a scenario, and what they would do with changes.

It decides what an observed instance looks like to the simulator, and does not know how a host is
observed or where the file goes.
"""
