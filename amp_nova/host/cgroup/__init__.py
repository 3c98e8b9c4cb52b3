"""The CPU cgroups of vCPUs, version 1 and 2, and the timing of writes in a bandwidth period."""
