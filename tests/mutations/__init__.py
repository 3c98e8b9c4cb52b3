# SPDX-License-Identifier: Apache-2.0
"""Checks that safety rests on, removed one after the other: whether a test notices."""
