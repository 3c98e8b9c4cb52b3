# SPDX-License-Identifier: Apache-2.0
"""What Nova loads: extra-spec validators, the filter, the weighers, and the host-report server.

These modules translate Nova's objects; decisions are made in ``admission`` and ``scheduling``.
"""
