"""The commands of ``amp-nova`` that simulate, and that record what to simulate."""
