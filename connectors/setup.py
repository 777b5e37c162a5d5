# SPDX-License-Identifier: Apache-2.0
from glob import glob

from setuptools import setup

# "make wheel" adds the folders scripts and share, which have what a checkout installs itself.
setup(cffi_modules=["build_native.py:ffibuilder"], scripts=glob("scripts/*"),
      data_files=[(file.rpartition("/")[0], [file]) for file in glob("share/*/*/*")])
