"""The guard: what holds on a host while no agent is in control.

It knows records and cgroup files, and nothing else of amp-nova: it imports the standard library
only, so that no fault of the agent, of libvirt or of an installed package can take it down as well.
"""
