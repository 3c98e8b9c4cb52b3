"""pbr reads everything from setup.cfg; setuptools wants this file to be told so."""

import setuptools

setuptools.setup(pbr=True)
