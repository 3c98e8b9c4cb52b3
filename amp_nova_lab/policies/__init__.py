# SPDX-License-Identifier: Apache-2.0
"""Published policies that the agent does not ship: one module each, found by entry point."""
