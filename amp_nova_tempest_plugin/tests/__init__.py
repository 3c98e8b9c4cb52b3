# SPDX-License-Identifier: Apache-2.0
"""The tests; each module is about one part of amp-nova."""
