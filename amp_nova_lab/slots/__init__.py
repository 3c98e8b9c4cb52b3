"""Published hypervisor schedulers that decide in time slots, for comparison with the policies."""
