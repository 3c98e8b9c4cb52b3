"""The tests; each module is about one part of amp-nova."""
