"""The threads that do domains' I/O, and the network interfaces they serve."""
