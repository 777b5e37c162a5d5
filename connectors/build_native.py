# SPDX-License-Identifier: Apache-2.0
"""build_native.py - the extension module kvfs._native, by cffi in API mode.

The declarations come from kvfs.h itself, so a changed struct or function changes here as well,
or does not compile.  The library is the installed one (pkg-config kvfs; PKG_CONFIG_PATH says
which), else that of the checkout this folder stands in.  The library is linked dynamically, so
a process has one libkvfs.
"""
import os
import re
import shlex
import subprocess

from cffi import FFI

here = os.path.dirname(os.path.abspath(__file__))
checkout = os.path.dirname(here)


def pkg_config(what):
    try:
        done = subprocess.run(["pkg-config", what, "kvfs"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return shlex.split(done.stdout) if done.returncode == 0 else None


def library():
    """Return the folders of kvfs.h and of libkvfs.so."""
    if (found := pkg_config("--variable=prefix")) is not None:
        return f"{found[0]}/include", pkg_config("--variable=libdir")[0]
    header, built = f"{checkout}/kernels", f"{checkout}/build"
    if os.path.exists(f"{built}/libkvfs.so") and os.path.exists(f"{header}/kvfs.h"):
        return header, built
    raise SystemExit("kvfs: no libkvfs: run \"make install\" in kvfs's checkout (or \"make\", "
                     "and install this package from there)")


def declarations(header):
    """Return kvfs.h as cffi reads it: no comments, of the preprocessor only integer constants."""
    text = re.sub(r"/\*.*?\*/", " ", open(header).read(), flags=re.S).replace("\\\n", " ")
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    lines = []
    for line in text.splitlines():
        constant = re.fullmatch(r"#define (KVFS_\w+) (UINT\d+_MAX|(0?x?[0-9a-fA-F]+)[uUlL]*)",
                                line.strip())
        if constant:
            lines.append(f"#define {constant.group(1)} {constant.group(3) or '...'}")
        elif not line.startswith("#"):
            lines.append(line)
    return "\n".join(lines)


def native():
    """Return native.c, and its declarations between PYTHON_CALLS and the #undef."""
    text = open(f"{here}/native.c").read()
    calls = text.split("#define PYTHON_CALLS\n")[1].split("#undef PYTHON_CALLS\n")[0]
    return text, re.sub(r"/\*.*?\*/|static ", " ", calls, flags=re.S)


include, lib = library()
source, calls = native()
ffibuilder = FFI()
ffibuilder.cdef(declarations(f"{include}/kvfs.h"))
ffibuilder.cdef(calls)
ffibuilder.set_source("kvfs._native", source, include_dirs=[include], library_dirs=[lib],
                      libraries=["kvfs"], runtime_library_dirs=[lib], extra_compile_args=["-O2"])

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
