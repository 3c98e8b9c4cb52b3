# SPDX-License-Identifier: Apache-2.0
"""What a server and its owner may know: the capacity that it books and gets, nothing of others."""
