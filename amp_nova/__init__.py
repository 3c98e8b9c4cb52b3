"""amp-nova: predictable CPU capacity on asymmetric multicore hosts."""
