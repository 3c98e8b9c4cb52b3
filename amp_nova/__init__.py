# SPDX-License-Identifier: Apache-2.0
"""amp-nova: predictable CPU capacity on asymmetric multicore hosts."""
