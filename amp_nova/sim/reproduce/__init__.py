"""The papers' tables and figures again: what was published, and what the simulator gives."""
