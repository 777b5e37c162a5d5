#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bare.sh - run the commands of README.md and the manuals' examples, as typed, as root
# on a Debian 12 that has nothing but apt.  mmdebstrap makes that system from the package
# sources of this machine, in a temporary directory.  Exits 77 without root, FUSE,
# sources of Debian 12, or a network.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/mount/typed
. tests/debian
[ -r /dev/fuse ] && [ -w /dev/fuse ] || skip "no /dev/fuse"

T=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-bare.XXXXXX") || exit 1
trap 'rm -rf --one-file-system "$T"' EXIT
trap 'exit 1' INT TERM
# apt drops its rights to a user of its own, which must reach the files below $T.
chmod 755 "$T"
R=$T/root
debian bookworm "$R" || fail "mmdebstrap"
mkdir "$R/root/kvfs"
git ls-files -co --exclude-standard | while read -r f; do [ ! -e "$f" ] || echo "$f"; done |
	tar -cT - | tar -xC "$R/root/kvfs" || fail "the clone"

{
	typed_readme README.md
	# README.md promises that the next mount has the block again.
	echo 'kvfs -o dram=64M,ssd=256M /var/lib/kvfs /kvfs'
	echo 'xxh128sum <$block'
	echo 'apt-get install -y jq xxd lmdb-utils'
	typed_page man/kvfs-fsck.8
	typed_page man/kvfs-store.5
	typed_page man/kvfs.1 1 2
	sed -n 's/^\.B kvfs \(.*\)/kvfs \1/p' man/libkvfs.3 | sed 's/\\-/-/g'
	echo "cat >example.c <<'EOF'"
	typed_page man/libkvfs.3
	echo EOF
	sed -n 's/^\.B cc \(.*\)/cc \1/p' man/libkvfs.3 | sed 's/\\-/-/g'
	echo './a.out; ./a.out; mkdir /backup'
	typed_page man/kvfs.1 6 | sed '/node2/d'
	typed_page man/kvfs-bundle.1 1
	echo 'umount /kvfs'
	typed_page man/kvfs.1 7
	typed_page man/kvfs-remote.7
	echo 'umount /kvfs2'
	echo 'kvfs -o dram=64M,ssd=256M,remote=dir:/srv/shared /var/lib/kvfs2 /kvfs; mkdir -p /kvfs/llama/0a'
	echo 'for n in 9 8; do printf '\''\065\0\0\0\0\0\0\0%sKVKV'\'' "$json" >/kvfs/llama/0a/0a1b2c3d4e5f60718293a4b5c6d7e8f$n; done'
	typed_page man/kvfs-forget.1
	echo '[ "$(find /kvfs/llama -type f)" = "" ]; umount /kvfs'
	# Run the container example of kvfs(1), but with less memory and disk.
	typed_page man/kvfs.1 3 | sed 's/16G/64M/; s/200G/256M/; s/$/ \&/'
	echo 'until [ -S /run/kvfs/control ]; do sleep 0.1; done'
	typed_page man/kvfs.1 8 | sed 's/.* CMD //'
	echo 'kill $!; wait $!; cat >>/etc/fstab <<EOF'
	typed_page man/kvfs.1 4
	echo EOF
	echo 'mount /kvfs; kvfs --health /kvfs; umount /kvfs'
	echo 'apt-get install -y systemd'
	echo "awk '/^# .*service\$/ { unit = \$2 } !/^\\.PP/ { print >\"/etc/systemd/system/\" unit }' <<'EOF'"
	typed_page man/kvfs.1 11
	echo EOF
	echo 'units=/usr/local/lib/systemd/system; for unit in kvfs kvfs-mount; do cp $units/$unit@.service /run/$unit@x.service; done'
	echo 'useradd --system kvfs; systemd-analyze verify /etc/systemd/system/kvfs*.service /run/*@x.service'
	echo 'systemd-analyze security --offline=yes --threshold=20 /run/kvfs@x.service'
	echo 'systemd-analyze security --offline=yes --threshold=50 /run/kvfs-mount@x.service'
	sed -n 's/^cc \(.*\)/cc \1/p' man/libkvfs-device.7 | sed 's/\\-/-/g'
	echo 'rm /usr/local/lib/libkvfs-present.so.1'
	echo "for i in {1..500}; do echo \"{\\\"input_length\\\": 1500, \\\"hash_ids\\\": [1, 2, \$((i % 90 + 3))]}\"; done | gzip >trace.jsonl.gz"
	typed_page man/kvfs-replay.1
	echo 'make uninstall'
} >"$R/root/typed"
inside "$R" 1800 bash -exc 'cd /root/kvfs; . /root/typed' >"$T/out" 2>&1 ||
	fail "a command fails: $?"

digest=$(sed -n 's/^user.kvfs.digest="\(.*\)"/\1/p' "$T/out" | head -n 1)
[ "$(grep -c "^$digest  stdin\$" "$T/out")" = 2 ] || fail "the block's bytes are not there, before and after"
[ "$(grep -c '^[08] blocks loaded, [08] computed and saved$' "$T/out")" = 2 ] || fail "libkvfs(3)'s program does not say what it did"
for said in '0 blocks loaded, 8 saved:2' '[04] blocks saved, 4 loaded:1'; do
	[ "$(grep -c "^${said%:*}\$" "$T/out")" = "${said##*:}" ] || fail "the examples do not print ${said%:*}"
done
[ "$(find "$R/backup/example" -type f -name '????????*' | wc -l)" = 8 ] || fail "the backup lacks blocks"
left=$(find "$R/usr/local" "$R/sbin/" -name '*kvfs*')
[ -z "$left" ] || fail "make uninstall leaves $left"
echo "all $(grep -c . "$R/root/typed") lines, on $(. "$R/etc/os-release" && echo "$PRETTY_NAME")"
