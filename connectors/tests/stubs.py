# SPDX-License-Identifier: Apache-2.0
"""stubs.py SITE_PACKAGES - empty stand-ins for the CUDA libraries that PyPI's torch is linked
against, so that torch loads without CUDA.  The functions of these libraries
return "no device"."""
import glob
import os
import re
import subprocess
import sys
import tempfile

lib = os.path.join(sys.argv[1], "torch", "lib")
SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)\.so|ld-linux|libgomp)")
CUDA = re.compile(r"^(_{0,2}(cu|nv|nccl|cufile|cudnn)[A-Za-z]|Nv)")
# Library of an unversioned symbol, by the first prefix that matches.
HOMES = [("nccl", "libnccl"), ("cudnn", "libcudnn"), ("cusparseLt", "libcusparseLt"),
         ("cusparse", "libcusparse"), ("cublasLt", "libcublasLt"), ("cublas", "libcublas"),
         ("cufft", "libcufft"), ("cuFile", "libcufile"), ("cupti", "libcupti"),
         ("curand", "libcurand"), ("cusolver", "libcusolver"), ("nvrtc", "libnvrtc"),
         ("nvshmem", "libnvshmem"), ("cuda", "libcudart"), ("__cuda", "libcudart"), ("cu", "libcuda.")]


def output(*command):
    return subprocess.run(command, capture_output=True, text=True).stdout


def wanted():
    """Return missing libraries with their versions, and undefined symbols with theirs."""
    have = {os.path.basename(path) for path in glob.glob(f"{lib}/*.so*")}
    needed, versions, names = set(), {}, {}
    for path in sorted(glob.glob(f"{lib}/*.so*")):
        found = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-W", "-d", path))
        needed |= {name for name in found if name not in have and not SYSTEM.match(name)}
        library = None
        for line in output("readelf", "-W", "-V", path).splitlines():
            if match := re.search(r"File: (\S+)", line):
                library = match[1]
            elif (match := re.search(r"Name: (\S+)\s+Flags", line)) and library:
                versions.setdefault(library, set()).add(match[1])
        for line in output("nm", "-D", "--undefined-only", path).splitlines():
            words = line.split()
            if len(words) == 2 and words[0] == "U":
                name, _, version = words[1].partition("@")
                names.setdefault(name, set()).add(version.lstrip("@"))
    return sorted(needed), versions, names


def home(name, libraries):
    for prefix, start in HOMES:
        if name.startswith(prefix):
            return next((library for library in libraries if library.startswith(start)), None)
    return None


def build(library, names, versions):
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/stub.c", "w") as file:
            file.writelines(f"long {name}(void){{return 100;}}\n" for name in names)
        command = ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", "-O0", f"-Wl,-soname,{library}",
                   "-o", f"{lib}/{library}", f"{folder}/stub.c"]
        if versions:
            with open(f"{folder}/map", "w") as file:
                for version in sorted(versions):
                    of = "".join(f"{name};" for name, its in names.items() if its == version)
                    file.write(f"{version} {{global: {of}}};\n")
            command.append(f"-Wl,--version-script={folder}/map")
        subprocess.check_call(command)


def main():
    libraries, versions, names = wanted()
    owner = {version: library for library in libraries for version in versions.get(library, ())}
    stubs = {library: {} for library in libraries}
    for name, its in names.items():
        for version in its:
            library = owner.get(version)
            if library is None and not version and CUDA.match(name):
                library = home(name, libraries)
            if library:
                stubs[library][name] = version
    for library in libraries:
        build(library, stubs[library], versions.get(library, set()))


main()
