# SPDX-License-Identifier: Apache-2.0
"""A cloud on one machine: real OpenStack services and two real libvirt hosts.

``tools/minicloud`` runs it; doc/source/contributor/minicloud.rst describes it. Nothing here is part
of amp-nova's package.
"""
