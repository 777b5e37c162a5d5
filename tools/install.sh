#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh install|uninstall - put the build $B below $DESTDIR$PREFIX, its libraries in
# $DESTDIR$LIBDIR (default: $PREFIX/lib), or remove the installed files; called by make.
set -e
cd "$(dirname "$0")/.."
case $PREFIX in
/*) ;;
*) echo "PREFIX must be an absolute path, not '$PREFIX'" >&2; exit 1 ;;
esac
PREFIX=${PREFIX%/}
to=$DESTDIR$PREFIX
libdir=${LIBDIR:-$PREFIX/lib}
lib=$DESTDIR$libdir
verb=$1

put() { # put MODE FILE TARGET: install the file, or remove TARGET
	if [ "$verb" = install ]; then
		install -D -m "$1" "$2" "$3"
	else
		rm -f "$3"
	fi
}
link() { # link TEXT LINK: make the symbolic link, or remove it
	if [ "$verb" = install ]; then
		mkdir -p "${2%/*}" && ln -sf "$1" "$2"
	elif [ "$(readlink "$2")" = "$1" ]; then
		rm -f "$2"
	fi
}
# kvfs.pc names the prefix of this installation: the same build may be installed twice.
kvfs_pc() {
	cat <<-END
	prefix=$PREFIX
	libdir=$libdir
	Name: kvfs
	Description: KV cache blocks in and out of kvfs
	Version: $VERSION
	Libs: -L\${libdir} -lkvfs
	Libs.private: -ljansson -lxxhash -lmd -ldl -pthread
	Cflags: -I\${prefix}/include
	END
}

for program in kvfs kvfs-bench kvfs-fsck kvfs-replay; do
	put 755 "$B/$program" "$to/bin/$program"
done
put 755 tools/kvfs-forget "$to/bin/kvfs-forget"
put 755 tools/kvfs-bundle "$to/bin/kvfs-bundle"
for program in bundle command events flame local; do
	put 644 connectors/kvfs/$program.py "$to/libexec/kvfs/$program.py"
done
put 755 connectors/remote/kvfs-remote-mooncake "$to/libexec/kvfs/kvfs-remote-mooncake"
put 644 tools/completion/kvfs.bash "$to/share/bash-completion/completions/kvfs"
put 644 tools/completion/_kvfs "$to/share/zsh/site-functions/_kvfs"
[ "$verb" = install ] || rmdir "$to/libexec/kvfs" 2>/dev/null || true
put 644 kernels/kvfs.h "$to/include/kvfs.h"
put 644 kernels/kvfs_device.h "$to/include/kvfs_device.h"
put 644 "$B/libkvfs.a" "$lib/libkvfs.a"
put 755 "$B/libkvfs.so" "$lib/libkvfs.so.1"
link libkvfs.so.1 "$lib/libkvfs.so"
# The plug-in is built only where there is a CUDA compiler.
if [ "$verb" = uninstall ] || [ -e "$B/libkvfs-cuda.so" ]; then
	put 755 "$B/libkvfs-cuda.so" "$lib/libkvfs-cuda.so.1"
fi
kvfs_pc | put 644 /dev/stdin "$lib/pkgconfig/kvfs.pc"
for page in man/*.[1-9]; do
	put 644 "$page" "$to/share/man/man${page##*.}/${page##*/}"
done
for unit in packaging/systemd/*.service; do
	sed "s,/usr/local/bin/,$PREFIX/bin/," "$unit" | put 644 /dev/stdin "$to/lib/systemd/system/${unit##*/}"
done

# mount(8) looks for helpers only in /sbin, which belongs to the whole machine: an
# installation for all users goes there, one with a prefix of its own does not.  A package has
# them in /usr/sbin, to which /sbin is a link, and may not have files below that link.
case $PREFIX in
/usr | /usr/local)
	for helper in mount.kvfs umount.kvfs; do
		link "$PREFIX/bin/kvfs" "$DESTDIR${DESTDIR:+/usr}/sbin/$helper"
	done
	# Without ldconfig, programs find the library only after the next boot.
	if [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ]; then
		ldconfig
	fi ;;
*)
	[ "$verb" != install ] ||
		echo "mount -t kvfs needs /sbin/mount.kvfs, umount that waits /sbin/umount.kvfs: links to $PREFIX/bin/kvfs" ;;
esac
