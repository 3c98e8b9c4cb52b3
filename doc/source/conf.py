"""Sphinx configuration of the documentation."""

project = "amp-nova"
author = "amp-nova developers"
copyright = "amp-nova developers"  # noqa: A001, the name is Sphinx's
extensions = ["openstackdocstheme", "oslo_config.sphinxext"]
html_theme = "openstackdocs"
nitpicky = True
