# SPDX-License-Identifier: Apache-2.0
"""What the agent remembers between cycles, one module per kind of state.

The control loop owns all of this state; no module here reads or writes the host.
"""
