# SPDX-License-Identifier: Apache-2.0
"""The papers' tables and figures: one file per paper, published values beside simulated ones."""
