#!/bin/sh
# install.sh - put the build $B below $DESTDIR$PREFIX; called by `make install`.
set -e
cd "$(dirname "$0")/.."
to=$DESTDIR$PREFIX
install -d "$to/bin" "$to/lib/pkgconfig" "$to/include" "$DESTDIR/sbin"
for program in kvfs kvfs-bench kvfs-fsck kvfs-replay; do
	install -m 755 "$B/$program" "$to/bin/"
done
# mount(8) looks nowhere else.
ln -sf "$PREFIX/bin/kvfs" "$DESTDIR/sbin/mount.kvfs"
install -m 644 kernels/kvfs.h "$to/include/"
install -m 644 "$B/libkvfs.a" "$to/lib/"
install -m 755 "$B/libkvfs.so" "$to/lib/libkvfs.so.0"
ln -sf libkvfs.so.0 "$to/lib/libkvfs.so"
# Only where there is a CUDA compiler.
if [ -e "$B/libkvfs-cuda.so" ]; then
	install -m 755 "$B/libkvfs-cuda.so" "$to/lib/libkvfs-cuda.so.0"
fi
install -m 644 "$B/kvfs.pc" "$to/lib/pkgconfig/"
for page in man/*.[1-9]; do
	install -D -m 644 "$page" "$to/share/man/man${page##*.}/${page##*/}"
done
