# SPDX-License-Identifier: Apache-2.0
"""pbr reads everything from setup.cfg; setuptools wants this file to be told so."""

import configparser
import os
from pathlib import Path

import setuptools

# pbr would count commits since the last tag, which an archive has not, nor a shallow clone all of
# them. An sdist knows its version.
if not Path("PKG-INFO").exists():
    setup = configparser.ConfigParser()
    setup.read("setup.cfg")
    os.environ.setdefault("PBR_VERSION", setup["metadata"]["version"])

setuptools.setup(pbr=True)
