# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

from importlib import metadata

project = "amp-nova"
author = "amp-nova developers"
copyright = "amp-nova developers"  # noqa: A001, the name is Sphinx's
version = release = metadata.version("amp-nova")  # as the command prints it
openstackdocs_auto_version = False
extensions = ["cliff.sphinxext", "openstackdocstheme", "oslo_config.sphinxext"]
html_theme = "openstackdocs"
nitpicky = True
smartquotes_action = "qe"  # two dashes begin an option
# What all commands have that print something.
autoprogram_cliff_ignored = [
    *("--help", "--format", "--column", "--quote", "--noindent", "--max-width", "--fit-width"),
    *("--print-empty", "--sort-column", "--sort-ascending", "--sort-descending", "--prefix"),
]
