#!/bin/bash
# abi.sh - the binary interface of libkvfs: the functions of kvfs.h, the list in
# kernels/libkvfs.map and the library's exports agree; the sonames are those that programs
# and the loader of plug-ins ask for; header, Makefile and library have the same version.
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
failed=0
fail() {
	echo "$*"
	failed=1
}
soname() { readelf -d "$1" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p'; }

header=$(sed 's@/\*.*\*/@@' kernels/kvfs.h | tr '\n' ' ' | grep -oE '\bkvfs_[a-z_]+\([^)]*\);' |
	grep -oE '^kvfs_[a-z_]+' | sort -u)
listed=$(sed -n '/^global:/,/^local:/p' kernels/libkvfs.map | grep -oE 'kvfs_[a-z_]+' | sort)
exported=$(nm -D --defined-only "$B/libkvfs.so" | grep -oE ' T .*' | cut -c4- | sort)
[ "$(wc -w <<<"$header")" -gt 70 ] || fail "kvfs.h: only $(wc -w <<<"$header") functions were found"
[ "$header" = "$listed" ] || fail "kvfs.h and kernels/libkvfs.map differ: $(diff <(echo "$header") <(echo "$listed"))"
[ "$(uniq -d <<<"$listed")" = "" ] || fail "kernels/libkvfs.map has twice: $(uniq -d <<<"$listed")"
unversioned=$(grep -v '@@KVFS_[0-9]*\.[0-9]*$' <<<"$exported")
[ -z "$unversioned" ] || fail "exported without a version: $unversioned"
[ "$listed" = "$(sed 's/@.*//' <<<"$exported")" ] ||
	fail "the library exports something else: $(diff <(echo "$listed") <(sed 's/@.*//' <<<"$exported"))"

[ "$(soname "$B/libkvfs.so")" = libkvfs.so.1 ] || fail "soname $(soname "$B/libkvfs.so")"
# When all sessions are closed, a thread of the library may still wait for a
# hung daemon.
# Python and others bring an OpenSSL of another version into the process.
needed=$(readelf -d "$B/libkvfs.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -E 'crypto|ssl') &&
	fail "the library needs $needed"
readelf -d "$B/libkvfs.so" | grep -q NODELETE || fail "the library can be unloaded"
[ ! -e "$B/libkvfs-cuda.so" ] || [ "$(soname "$B/libkvfs-cuda.so")" = libkvfs-cuda.so.1 ] ||
	fail "soname $(soname "$B/libkvfs-cuda.so")"
grep -aq 'libkvfs-%s\.so\.1' "$B/libkvfs.so" || fail "plug-ins of another soname are looked for"
version=$(sed -n 's/^VERSION *:= *//p' Makefile)
IFS=. read -r major minor patch <<<"$version"
number=$(sed -n 's/^#define KVFS_VERSION \(0x[0-9a-f]*\)u$/\1/p' kernels/kvfs.h)
[ $((number)) = $((major << 16 | minor << 8 | patch)) ] || fail "KVFS_VERSION is $number, Makefile says $version"
exit $failed
