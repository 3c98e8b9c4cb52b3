"""Sphinx configuration of the release notes."""

project = "amp-nova release notes"
author = "amp-nova developers"
copyright = "amp-nova developers"
extensions = ["reno.sphinxext"]
html_theme = "alabaster"
