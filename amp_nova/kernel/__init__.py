# SPDX-License-Identifier: Apache-2.0
"""The kernel's files of threads and CPU cgroups, read and written by agent and guard.

It decides nothing. The guard has to run when anything else cannot, so these modules need the
standard library only.
"""
