"""The CPU cgroups of vCPUs, version 1 and 2, and when in a bandwidth period to write."""
