"""``openstack amp``: hosts, servers, flavors and capacity, for operators of a whole cloud.

It reads what a cloud has anyway: Nova, Placement and Prometheus. It talks to no agent, and what a
flavor books and whether it fits is answered by ``flavor`` and ``scheduling``.
"""
