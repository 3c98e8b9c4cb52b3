"""An agent for an hour: whether memory, descriptors, threads and series stay as they are."""
