# SPDX-License-Identifier: Apache-2.0
from glob import glob

from setuptools import setup

# "make wheel" adds the folders scripts and man, which have what a checkout installs itself.
setup(cffi_modules=["build_native.py:ffibuilder"], scripts=glob("scripts/*"),
      data_files=[(f"share/man/man{n}", glob(f"man/*.{n}")) for n in range(1, 9)])
