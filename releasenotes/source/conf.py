# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

from importlib import metadata

from docutils import nodes

project = "amp-nova release notes"
author = "amp-nova developers"
copyright = "amp-nova developers"  # noqa: A001, the name is Sphinx's
version = release = metadata.version("amp-nova")  # as the command prints it
extensions = ["reno.sphinxext"]
html_theme = "alabaster"


def setup(app):
    """Name the version in the heading for which reno finds no tag."""
    app.connect("doctree-read", name_untagged)


def name_untagged(_app, doctree):
    for title in doctree.findall(nodes.title):
        if title.astext() == "0.0.0":
            title[:] = [nodes.Text(version)]
