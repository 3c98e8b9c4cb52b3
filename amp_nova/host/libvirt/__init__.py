# SPDX-License-Identifier: Apache-2.0
"""Domains as libvirt defines them: connection, events, domain XML, and changes to it."""
