"""The guard: keeps a host in its safe state while no agent is in control.

It knows records and cgroup files, and nothing else of amp-nova. It imports only the standard
library, so that no fault of the agent, of libvirt or of an installed package can stop it as well.
"""
