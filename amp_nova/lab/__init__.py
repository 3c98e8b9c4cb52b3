"""Real guests on one machine, for tests and demonstrations: a slow core made of instructions."""
