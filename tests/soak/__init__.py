# SPDX-License-Identifier: Apache-2.0
"""An agent for an hour: whether memory, descriptors, threads and series stay as they are."""
