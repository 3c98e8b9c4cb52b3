# SPDX-License-Identifier: Apache-2.0
"""Published hypervisor schedulers that decide in time slots, for comparison with the policies."""
