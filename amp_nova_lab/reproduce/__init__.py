"""The papers' tables and figures: one file per paper, published values beside simulated ones."""
