# SPDX-License-Identifier: Apache-2.0
"""The commands of ``amp-nova`` that simulate, and that record what to simulate."""
