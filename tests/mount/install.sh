#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# install.sh - `make install` puts the build below PREFIX, whatever was built before and
# whichever user runs it; only an installation for all users changes the machine's /sbin and
# list of libraries; `make uninstall` leaves nothing; and `make` reports missing packages.
. "$(dirname "$0")/lib"
root=$(realpath "$here/../..")
install_sh() { B=$B VERSION=1.2 "$root/tools/install.sh" "$@"; }
machine() { stat -c '%Y %i %N' /sbin/mount.kvfs /etc/ld.so.cache 2>&1; }
below() { (cd "$1" && find . ! -type d | sort); }

mkdir "$T/no-python" && ln -s "$(command -v dirname)" "$(command -v readlink)" "$T/no-python/" || fail "no-python"
for prefix in "$T/one" "$T/two/"; do
	before=$(machine)
	out=$(PREFIX=$prefix install_sh install) || fail "install to $prefix"
	eq "the machine's mount helper and list of libraries" "$(machine)" "$before"
	case $out in
	*"needs /sbin/mount.kvfs"*) ;;
	*) fail "nothing is said of mount -t kvfs: $out" ;;
	esac
	eq "units" "$(cat "$prefix"/lib/systemd/system/kvfs*@.service | grep -c "^ExecStart=${prefix%/}/bin/kvfs ")" 2
	eq "kvfs.pc" "$(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --variable=prefix kvfs)" "${prefix%/}"
	ok "run" "$prefix/bin/kvfs" --version
	ok "run" "$prefix/bin/kvfs-bundle" --version
	not "without Python" "install the package python3" env PATH="$T/no-python" "$prefix/bin/kvfs-bundle" --version
	ok "a command" "$prefix/bin/kvfs" top --help
	ok "a program" "$prefix/bin/kvfs" bundle --version
	not "a command without Python" "install the package python3" env PATH="$T/no-python" "$prefix/bin/kvfs" top --help
	mv "$prefix/libexec/kvfs/command.py" "$T/" && mv "$prefix/bin/kvfs-fsck" "$T/"
	not "a command without its file" "command.py is missing: install the package kvfs" "$prefix/bin/kvfs" top --help
	not "without the program" "kvfs-fsck is missing: install the package kvfs" "$prefix/bin/kvfs" fsck --help
	mv "$T/command.py" "$prefix/libexec/kvfs/" && mv "$T/kvfs-fsck" "$prefix/bin/"
done
same "the same files" <(below "$T/one") <(below "$T/two")

DESTDIR=$T/dest PREFIX=/usr/local install_sh install || fail "install to DESTDIR"
absent "a package's files below /sbin" "$T/dest/sbin"
eq "mount helper" "$(readlink "$T/dest/usr/sbin/mount.kvfs")" /usr/local/bin/kvfs
DESTDIR=$T/dest PREFIX=/opt/kvfs install_sh uninstall || fail "uninstall what is not there"
eq "another's mount helper" "$(readlink "$T/dest/usr/sbin/mount.kvfs")" /usr/local/bin/kvfs
DESTDIR=$T/dest PREFIX=/usr/local install_sh uninstall || fail "uninstall"
DESTDIR=$T/multi PREFIX=/usr LIBDIR=/usr/lib/triplet install_sh install || fail "install to LIBDIR"
eq "files of the library in and beside LIBDIR" "$(below "$T/multi" | grep '/lib/' | grep -cvE '/lib/(triplet|systemd)/')" 0
eq "libdir of kvfs.pc" "$(PKG_CONFIG_LIBDIR=$T/multi/usr/lib/triplet/pkgconfig pkg-config --libs-only-L kvfs | tr -d ' ')" -L/usr/lib/triplet
eq "what uninstall leaves" "$(below "$T/dest")" ""

not "relative prefix" "absolute path" env PREFIX=here B="$B" VERSION=1 "$root/tools/install.sh" install
if [ "$(id -u)" = 0 ]; then
	install -d -o nobody "$T/nobody"
	mkdir -p "$T/src/tools" "$T/src/kernels" "$T/build"
	cp "$root/tools/install.sh" "$root"/tools/kvfs-* "$T/src/tools/" && cp "$root"/kernels/*.h "$T/src/kernels/"
	cp -r "$root/tools/completion" "$T/src/tools/"
	mkdir -p "$T/src/connectors/kvfs" && cp -r "$root/connectors/remote" "$T/src/connectors/"
	cp "$root"/connectors/kvfs/{bundle,command,events,flame,local}.py "$T/src/connectors/kvfs/"
	cp -r "$root/man" "$root/packaging" "$T/src/" && cp "$B"/kvfs* "$B"/libkvfs* "$T/build/" 2>/dev/null
	chmod -R a+rX "$T/src" "$T/build"
	ok "as another user" setpriv --reuid=nobody --regid=nogroup --clear-groups \
		env B="$T/build" VERSION=1 DESTDIR= PREFIX="$T/nobody/kvfs" "$T/src/tools/install.sh" install
	same "the same files as root's" <(below "$T/one") <(below "$T/nobody/kvfs")
fi

not "make without the libraries" 'run "make deps"' \
	env PKG_CONFIG_LIBDIR="$T" make -s -C "$root" B="$T/b" "$T/b/common/copy.o"
for target in demo test bench soak; do
	ok "make -n $target" timeout 120 make -n -C "$root" B="$T/n" "$target"
	absent "make -n $target runs nothing" "$T/n"
done
