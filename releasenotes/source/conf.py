"""Sphinx configuration of the release notes."""

project = "amp-nova release notes"
author = "amp-nova developers"
copyright = "amp-nova developers"  # noqa: A001, the name is Sphinx's
extensions = ["reno.sphinxext"]
html_theme = "alabaster"
