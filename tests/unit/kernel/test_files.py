# SPDX-License-Identifier: Apache-2.0
"""Whatever is in a file of the kernel is read, or refused, within bounds."""

import os

import pytest

from amp_nova.kernel import files


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom"])
def test_a_file_without_an_end_is_refused(path):
    with pytest.raises(OSError, match="too large"):
        files.text(path)


def test_nobody_waits_for_a_pipe(tmp_path):
    """Nothing is in one without a writer."""
    os.mkfifo(tmp_path / "pipe")

    assert files.text(tmp_path / "pipe") == ""


def test_bytes_that_are_no_text_are_shown_or_lead_to_the_same_path(tmp_path):
    """As what is printed, and as what is opened again."""
    path = tmp_path / os.fsdecode(b"a\xff")
    path.write_bytes(os.fsencode(path))

    assert files.text(path) == f"{tmp_path}/a\ufffd"
    assert files.text(files.text(path, files.PATHS), files.PATHS) == str(path)
