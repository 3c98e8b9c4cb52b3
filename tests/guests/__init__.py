# SPDX-License-Identifier: Apache-2.0
"""Real guests on one machine, and one of its CPUs made slower: what tests of enforcement need."""
