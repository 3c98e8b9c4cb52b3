# SPDX-License-Identifier: Apache-2.0
"""``openstack amp``: hosts, servers, flavors and capacity, for operators of a whole cloud.

It reads Nova, Placement and Prometheus, and talks to no agent. ``flavor`` and ``scheduling`` decide
what a flavor books and whether it fits.
"""
