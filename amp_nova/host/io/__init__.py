"""The threads that do domains' I/O, and the interfaces they serve."""
