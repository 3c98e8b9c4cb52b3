"""The papers' tables and figures, published values beside simulated ones."""
