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
install -m 644 "$B/kvfs.pc" "$to/lib/pkgconfig/"
for page in man/*.[1-9]; do
	install -D -m 644 "$page" "$to/share/man/man${page##*.}/${page##*/}"
done
# Each function of the library is a name of its page.
sed -n '/^.SH NAME/,/^.SH SYN/p' man/libkvfs.3 | grep -o 'kvfs_[a-z_]*' | sort -u |
while read -r name; do
	echo '.so man3/libkvfs.3' > "$to/share/man/man3/$name.3"
done
