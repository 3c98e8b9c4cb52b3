# SPDX-License-Identifier: Apache-2.0
"""What every command does with bad input."""


def refused(answer):
    """The error of a command that refuses its input: one line, and exit status 2."""
    status, out, err = answer
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("amp-nova")
    return err
