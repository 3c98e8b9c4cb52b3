# SPDX-License-Identifier: Apache-2.0
"""Tempest tests of a cloud with amp-nova, by OpenStack's APIs and Prometheus alone."""
