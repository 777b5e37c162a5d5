#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""program.py - start the program of this script's name in the package's folder bin.

The wheel has this file once for each program.  The package is located but not imported,
because a program must start although libkvfs cannot be loaded.  Programs in Python run
with this interpreter, also those that another program starts.
"""
import importlib.util
import os
import sys

spec = importlib.util.find_spec("kvfs")
if spec is None or not spec.submodule_search_locations:
    sys.exit(f"{sys.argv[0]}: the Python package kvfs is not installed here")
package = spec.submodule_search_locations[0]
command = [os.path.join(package, "bin", os.path.basename(sys.argv[0])), *sys.argv[1:]]
with open(command[0], "rb") as file:
    if file.read(2) == b"#!":
        command.insert(0, sys.executable)
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"
os.execv(command[0], command)
