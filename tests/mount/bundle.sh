#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh - kvfs-bundle: copy a snapshot, and a whole space, to another node and back;
# streams that are cut, damaged or malicious; spaces that exist already, or belong to
# another user.
. "$(dirname "$0")/lib"
start
install_program bundle bundle local
# Python cannot load a library built with a sanitizer unless the sanitizer is
# loaded first.
sanitizer=$(ldd "$B/libkvfs.so" | sed -n 's/.* \(\/[^ ]*lib[at]san[^ ]*\).*/\1/p')
[ -z "$sanitizer" ] || export LD_PRELOAD=$sanitizer ASAN_OPTIONS=detect_leaks=0
bundle() { "$T/bin/kvfs-bundle" "$@"; }
snap() { "$B/tests/mount/snap" "$M" "$@"; }
says() { grep -qF -- "$2" "$T/said" || fail "$1: '$2' is not said, but '$(cat "$T/said")'"; }
# status WHAT WANTED COMMAND...: fail unless COMMAND exits with WANTED; its errors go to $T/said
status() {
	local what=$1 wanted=$2 got
	shift 2
	"$@" 2>"$T/said"
	got=$?
	eq "$what: status, saying $(cat "$T/said")" $got "$wanted"
}
digest() { xxh128sum <"$1" | cut -c 1-32; }
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16}
L
# Make bundles such as an export never writes.
cat > "$T/stream.py" <<'P'
import io, sys, tarfile
folder = sys.argv[1]
mark = {"SCHILY.xattr.user.kvfs.bundle": "kvfs bundle 1"}
def member(name, type=tarfile.REGTYPE, data=b"", link="", **pax):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = type, len(data), link, pax
    return info, io.BytesIO(data)
def make(name, *members):
    with tarfile.open(f"{folder}/{name}", "w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            data.seek(0)
            tar.addfile(info, data)
def digest(digits):
    return {"SCHILY.xattr.user.kvfs.digest": digits}
def file(name, path, digits):
    with open(path, "rb") as f:
        return member(name, data=f.read(), **digest(digits))
def begin(space="s"):
    return member(space + "/", tarfile.DIRTYPE, **mark)
def end(n, space="s"):
    return member(space + "/", tarfile.DIRTYPE, **{"SCHILY.xattr.user.kvfs.bundle": f"blocks {n}"})
P
stream() { { cat "$T/stream.py"; cat; } | python3 - "$T" "$@" || fail "stream.py"; }
kv() { block "$@" --tensor k:BF16:4x16x64:8192 --tensor v:BF16:4x16x64:8192; }
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
keys=()
for i in 9 3 7 1 5; do
	kv "$T/b$i" --seed "$i" --meta "position=${#keys[@]}"
	put s $i "$T/b$i" || fail "put $i"
	keys+=("$(key $i)")
done
touch -d "2024-01-05 10:00:00.5" "$M/s/$(place 7)"
ok "a snapshot" snap s make "turn 1" "${keys[@]:0:4}"
bundle "$M/s" "turn 1" >"$T/four" || fail "export"
bundle "$M/s" >"$T/five" || fail "export of all"
ok "verified" bundle -t <"$T/four"
eq "JSON of a check" "$(bundle -t --json <"$T/four")" '{"space": "s", "blocks": 4, "missing": 0, "status": 0}'
eq "parents before children" "$(tar -tf "$T/four" | tr '\n' ' ')" \
	"s/ s/.layout s/$(place 9) s/$(place 3) s/$(place 7) s/$(place 1) s/ "
eq "all" "$(tar -tf "$T/five" | wc -l)" 8

# Start another node, with a store and a mount of its own.
N=$T/node
mkdir "$N"
node() { "$B/kvfs" -o "$BASE,control=$T/sock2${1:+,$1}" "$T/store2" "$N" || fail "the other node"; }
node
not "where no kvfs is" "store: not a mount point of kvfs" bundle -x -C "$T/store" <"$T/four"
absent "a space there" "$T/store/s"
not "in a space" "s: not a mount point of kvfs" bundle -x -C "$M/s" <"$T/four"
ok "import" bundle -x -C "$N" <"$T/four"
for i in 9 3 7 1; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
absent "what is not of the snapshot" "$N/s/$(place 5)"
same "the layout" "$M/s/.layout" "$N/s/.layout"
eq "the time" "$(stat -c %y "$N/s/$(place 7)")" "$(stat -c %y "$M/s/$(place 7)")"
eq "the digest" "$(xattr "$N/s/$(place 7)" digest)" "$(xattr "$M/s/$(place 7)" digest)"
ok "again" bundle -x -C "$N" <"$T/four"
ok "all, in the current directory" sh -c "cd $N && $T/bin/kvfs-bundle -x <$T/five"
same "the fifth" "$T/b5" "$N/s/$(place 5)"
eq "durable" "$(awk '$1 == "kvfs_dirty_blocks" { print $2 }' "$N/.kvfs/metrics")" 0
unmount "$N" && node ro
ok "where nothing can be written, nor need be" bundle -x -C "$N" <"$T/five"
unmount "$N" && node
rm -r "$N/s"
eq "by tar: what it says" "$(tar -C "$N" -xf "$T/five" 2>&1)" ""
diff -r "$M/s" "$N/s" || fail "tar: the trees differ"
rm -r "$N/s"

# Names of spaces are bytes, in every locale.
for name in mödel $'\xff\xfe' $'a \n\\b' "$(printf 'ö%.0s' {1..127})x"; do
	cp -r "$M/s" "$M/$name" || fail "the space '$name'"
	for LC_ALL in C C.UTF-8; do
		export LC_ALL
		bundle "$M/$name" >"$T/named" || fail "$LC_ALL: '$name' is not exported"
		ok "$LC_ALL: '$name' is verified" bundle -t <"$T/named"
		ok "$LC_ALL: '$name' is imported" bundle -x -C "$N" <"$T/named"
		diff -r "$M/s" "$N/$name" || fail "$LC_ALL: '$name' differs"
		rm -r "$N/$name"
		ok "$LC_ALL: '$name' by tar" tar -C "$N" -xf "$T/named"
		diff -r "$M/s" "$N/$name" || fail "$LC_ALL: '$name' by tar differs"
		rm -r "$N/$name"
	done
	unset LC_ALL
	rm -r "$M/$name"
done
stream "$M/s/.layout" "$(digest "$M/s/.layout")" <<'P'
make("utf8", begin("ö"), file("ö/.layout", sys.argv[2], sys.argv[3]), end(0, "ö"))
P
ok "UTF-8 that says so" bundle -x -C "$N" <"$T/utf8"
same "its layout" "$M/s/.layout" "$N/ö/.layout"
rm -r "$N/ö"

# The importing user decides whether blocks leave the node.
{ printf '{"share":true,'; sed 's/^{//' "$M/s/.layout"; } >"$T/shared.layout"
stream "$T/shared.layout" "$(digest "$T/shared.layout")" <<'P'
make("shared", begin("t"), file("t/.layout", sys.argv[2], sys.argv[3]), end(0, "t"))
P
ok "a shared one" bundle -x -C "$N" <"$T/shared"
same "its layout" "$M/s/.layout" "$N/t/.layout"
eq "share" "$(getfattr --only-values -n user.kvfs.share "$N/t")" 0
rm -r "$N/t"

# An imported space has the mode of the exported space, less the umask.
chmod 700 "$M/s" && bundle "$M/s" >"$T/private" && chmod 775 "$M/s" && bundle "$M/s" >"$T/open"
chmod 500 "$M/s" && bundle "$M/s" >"$T/locked" && chmod 755 "$M/s"
(umask 022 && bundle -x -C "$N" <"$T/private") && eq "private" "$(stat -c %a "$N/s")" 700
rm -r "$N/s"
(umask 027 && bundle -x -C "$N" <"$T/open") && eq "open" "$(stat -c %a "$N/s")" 750

# If a block is present with other bytes, it stays and is reported; the rest is imported.
rm "$N/s/$(place 3)" "$N/s/$(place 1)"
kv "$T/other" --seed 99
cp "$T/other" "$N/s/$(place 3)"
status "another block of that key" 1 bundle -x -C "$N" <"$T/four"
says "another block" "s/$(place 3): not taken: here with other bytes"
says "another block" "blocks not taken: 1 of 4"
same "it stays" "$T/other" "$N/s/$(place 3)"
same "the one after it" "$T/b1" "$N/s/$(place 1)"
rm -r "$N/s"

# A space that has blocks but no layout gets no layout; if it has a layout, the two are
# compared.
mkdir "$N/s" && sed 's/16\(, 64\)/32\1/g' "$T/layout" >"$N/s/.layout" || fail "another layout"
not "another layout" "s has another layout here" bundle -x -C "$N" <"$T/four"
rm -r "$N/s"
mkdir "$N/s" && ok "an empty space gets it" bundle -x -C "$N" <"$T/four"
same "the layout" "$M/s/.layout" "$N/s/.layout"
rm -r "$N/s"
block "$T/plain"
mkdir -p "$N/s/c8" && cp "$T/plain" "$N/s/$(place 200)"
not "blocks without one" "s has blocks and no layout here" bundle -x -C "$N" <"$T/four"
absent "the layout" "$N/s/.layout"
bundle "$N/s" >"$T/untyped" || fail "export without a layout"
rm -r "$N/s"
mkdir "$N/s" && cp "$T/layout" "$N/s/.layout"
not "a bundle without one" "s has a layout here, and the bundle none" bundle -x -C "$N" <"$T/untyped"
rm -r "$N/s"

# Cut the stream at every page: only complete blocks are imported.
for ((n = 0; n < $(stat -c %s "$T/four"); n += 4096)); do
	head -c "$n" "$T/four" | bundle -x -C "$N" 2>"$T/said" && fail "cut at $n: taken as whole"
	[ -s "$T/said" ] || fail "cut at $n: nothing is said"
done
eq "before the cut" "$(find "$N/s" -type f -name '[0-9a-f]*' | wc -l)" 4
for i in 9 3 7 1; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
rm -r "$N/s"

# One byte of a block's payload is changed: that block is rejected, the others are imported.
# One byte of the layout is changed: nothing is imported, because the keys depend on the
# layout.
flip() { # flip NEEDLE-FILE AT: flip a bit at AT in the first match of NEEDLE-FILE in the stream
	python3 - "$T/four" "$@" <<'P'
import sys
stream, needle = (open(name, "rb").read() for name in sys.argv[1:3])
at = stream.index(needle) + int(sys.argv[3])
sys.stdout.buffer.write(stream[:at] + bytes([stream[at] ^ 1]) + stream[at + 1:])
P
}
flip "$T/b7" 10000 >"$T/damaged"
printf '"seed"' >"$T/seed" && flip "$T/seed" 10 >"$T/damaged-layout"
for way in "-t" "-x -C $N"; do
	# shellcheck disable=SC2086
	status "$way of a damaged layout" 2 bundle $way <"$T/damaged-layout"
	says "$way of a damaged layout" "s/.layout: damaged"
	# shellcheck disable=SC2086
	status "$way of a damaged block" 1 bundle $way <"$T/damaged"
	says "$way of a damaged block" "s/$(place 7): not taken: damaged"
done
absent "the damaged one" "$N/s/$(place 7)"
same "the one after it" "$T/b1" "$N/s/$(place 1)"
eq "no staging file" "$(grep -c . <(find "$N/s/07" -name '.*[0-9a-f]*.bundle'))" 0
rm -r "$N/s"

# Blocks that the mount refuses are reported with the reason; the rest is
# imported.
printf 'no block' >"$T/no-block"
block "$T/large" --bytes 8500000
for i in no-block large plain b1; do digests+=("$(digest "$T/$i")"); done
stream "$M/s/.layout" "$(digest "$M/s/.layout")" "${digests[@]}" "$(place 2)" "$(place 3)" "$(place 4)" "$(place 1)" <<'P'
blocks = [file("s/" + sys.argv[8 + i], f"{folder}/{name}", sys.argv[4 + i])
          for i, name in enumerate(["no-block", "large", "plain", "b1"])]
make("mixed", begin(), file("s/.layout", sys.argv[2], sys.argv[3]), *blocks, end(4))
make("large-alone", begin(), blocks[1], end(1))
P
status "blocks that are none" 1 bundle -x -C "$N" <"$T/mixed"
says "not safetensors" "s/$(place 2): not taken: not a whole safetensors file"
says "not of the layout" "s/$(place 4): not taken: not of the space's layout"
says "of them" "blocks not taken: 3 of 4"
same "the one after them" "$T/b1" "$N/s/$(place 1)"
rm -r "$N/s"
status "a large block" 1 bundle -x -C "$N" <"$T/large-alone"
says "a large block" "s/$(place 3): not taken: larger than a segment"
rm -r "$N/s"

# Malicious streams: other names, links, devices, no digest, another order, more blocks
# than announced or bytes after the end, and streams that are no bundle.
stream "$(key 9)" "$M/s/.layout" "$(digest "$M/s/.layout")" "$(digest "$T/b9")" "$(digest "$T/seed")" "$(digest /dev/null)" <<'P'
key, at = sys.argv[2], "s/09/" + sys.argv[2]
zeros = digest("0" * 32)
layout = file("s/.layout", *sys.argv[3:5])
block = file(at, folder + "/b9", sys.argv[5])
make("h-unmarked", member("s/", tarfile.DIRTYPE))
make("h-newer", member("s/", tarfile.DIRTYPE, **{"SCHILY.xattr.user.kvfs.bundle": "kvfs bundle 2"}))
make("h-up", member("../", tarfile.DIRTYPE, **mark))
make("h-deep", begin("s/t"))
make("h-root", begin("/s"))
make("h-control", begin("\33[31m/x\r"))
make("h-control2", begin(), member("s/\33[31m", data=b"x", **zeros))
make("h-other", begin(), member("t/09/" + key, data=b"x", **zeros))
make("h-dots", begin(), member("s/../09/" + key, data=b"x", **zeros))
make("h-place", begin(), member("s/08/" + key, data=b"x", **zeros))
make("h-name", begin(), member(at + "0", data=b"x", **zeros))
make("h-file", begin(), member("s/09/../../x", data=b"x", **zeros))
make("h-symlink", begin(), member(at, tarfile.SYMTYPE, link="/etc/passwd", **zeros))
make("h-hardlink", begin(), member(at, tarfile.LNKTYPE, link="s/.layout", **zeros))
make("h-device", begin(), member(at, tarfile.CHRTYPE, **zeros))
make("h-undigested", begin(), member(at, data=b"x"))
make("h-layout", begin(), member("s/.layout", data=b"{" * 70000, **zeros))
make("h-layout-undigested", begin(), member("s/.layout", data=layout[1].getvalue()))
make("h-layout-empty", begin(), member("s/.layout", **digest(sys.argv[7])), end(0))
make("h-layout-none", begin(), file("s/.layout", folder + "/seed", sys.argv[6]), end(0))
make("h-layout-twice", begin(), layout, layout, end(0))
make("h-layout-late", begin(), block, layout, end(1))
make("h-empty", begin())
make("h-lies", begin(), end(7))
make("h-after", begin(), end(0), begin())
make("h-two", begin(), end(0))
make("h-trailing", begin(), end(0))
make("padded", begin(), end(0))
two = open(folder + "/h-two", "rb").read()
open(folder + "/h-two", "ab").write(two)
open(folder + "/h-trailing", "ab").write(b"x" * 9)
open(folder + "/padded", "ab").write(bytes(1 << 21))
P
gzip <"$T/four" >"$T/h-gzip"
head -c 300 "$T/four" >"$T/h-cut"
: >"$T/h-nothing"
for h in "$T"/h-*; do
	rm -rf "$N/s"
	for way in "-t" "-x -C $N"; do
		# shellcheck disable=SC2086
		status "${h##*/}: $way" 2 bundle $way <"$h"
		eq "${h##*/}: lines" "$(wc -l <"$T/said")" 1
		! LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f-\xff]' "$T/said" || fail "${h##*/}: not escaped"
	done
	[ "${h##*/}" = h-layout-late ] && rm -r "$N/s"
	eq "what came of ${h##*/}" "$(find "$N" "$T" -path "$N/.kvfs" -prune -o -type f -newer "$T/h-nothing" \
		\( -name x -o -name "$(key 9)*" \) -print)" ""
done
for n in 1 100 511 512 600 1100 1400 1536 1600; do
	status "cut at $n" 2 bundle -t < <(head -c "$n" "$T/four")
	eq "cut at $n: lines" "$(wc -l <"$T/said")" 1
	! grep -q '(null)' "$T/said" || fail "cut at $n: $(cat "$T/said")"
done
for h in gzip cut nothing; do
	bundle -t <"$T/h-$h" 2>"$T/said"
	says "$h" "not a bundle of kvfs (cut, or compressed?)"
done
bundle -t <"$T/h-lies" 2>"$T/said"
says "too few" "the bundle says it has 7 blocks, and came with 0"
while read -r h what; do
	bundle -t <"$T/h-$h" 2>"$T/said"
	says "$h" "$what"
done <<'W'
two more after the bundle's end
after more after the bundle's end
trailing more after the bundle's end
control '\033[31m/x\015/'
control2 's/\033[31m'
undigested without a digest
layout-undigested s/.layout: without a digest
layout-empty s/.layout: not a layout
layout-none s/.layout: not a layout
layout-twice not in its place: 's/.layout'
layout-late not in its place: 's/.layout'
W
ok "zeros at the end" bundle -t <"$T/padded"
not "a directory" "Is a directory" bundle -t <"$T"

# Another user's space: a name that the other user took first, or a space to be
# shared.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	A="setpriv --reuid 1000 --regid 1000 --clear-groups"
	C="setpriv --reuid 1001 --regid 1001 --clear-groups"
	rm -rf "$N/s"
	$C mkdir -m 777 "$N/s" || fail "C's space"
	not "into a stranger's" "s is there, and belongs to another user (uid 1001)" $A "$T/bin/kvfs-bundle" -x -C "$N" <"$T/four"
	not "root, into a stranger's" "(uid 1001): -S" bundle -x -C "$N" <"$T/private"
	eq "nothing came of it" "$(find "$N/s" -type f)" ""
	ok "meant so" bundle -x -S -C "$N" <"$T/four"
	ok "by a user, who may not write the layout" $A "$T/bin/kvfs-bundle" -xS -C "$N" <"$T/five"
	diff -r "$M/s" "$N/s" || fail "shared: the trees differ"
	rm -r "$N/s"
	ok "a user's own" $A "$T/bin/kvfs-bundle" -x -C "$N" <"$T/four"
	ok "his own again" $A "$T/bin/kvfs-bundle" -x -C "$N" <"$T/five"
	rm -r "$N/s"
	ok "what nobody could write" $A "$T/bin/kvfs-bundle" -x -C "$N" <"$T/locked"
	eq "its owner can" "$(stat -c %u:%a "$N/s")" 1000:700
	rm -r "$N/s"
fi

# Two imports at once, an importer that is killed, a full space, and a bad command line.
bundle -x -C "$N" <"$T/five" & one=$!
bundle -x -C "$N" <"$T/five" || fail "two at once: the second"
wait "$one" || fail "two at once: the first"
diff -r "$M/s" "$N/s" || fail "two at once: the trees differ"
rm -r "$N/s"
mkfifo "$T/pipe"
sleep 60 >"$T/pipe" & writer=$!
bundle -x -C "$N" <"$T/pipe" 2>"$T/said" & victim=$!
head -c 40000 "$T/five" >"$T/pipe"
for ((i = 0; i < 300; i++)); do [ -e "$N/s/$(place 1)" ] && break; sleep 0.1; done
same "usable before the rest has come" "$T/b1" "$N/s/$(place 1)"
kill -KILL "$victim" "$writer"
ok "after it was killed" bundle -x -C "$N" <"$T/five"
diff -r "$M/s" "$N/s" || fail "after a kill: the trees differ"
rm -r "$N/s"
mkdir "$N/s" && setfattr -n user.kvfs.quota.dram -v 64K "$N/s" || fail "quota"
setfattr -n user.kvfs.quota.ssd -v 64K "$N/s" || fail "quota"
status "beyond a quota" 1 bundle -x -C "$N" <"$T/five"
says "beyond a quota" " of 5: removed, or evicted for want of room"
rm -r "$N/s"

# Remove blocks during an export, which has listed all blocks before it writes the first
# byte.
mkdir "$M/many"
for i in {1..40}; do put many "$i" "$T/plain" && keys[i]=$(key "$i") || fail "put $i"; done
ok "a snapshot of many" snap many make all "${keys[@]:1:40}"
meanwhile() { # meanwhile COMMAND ARGUMENTS...: export, and run COMMAND once the export has begun
	local command=$1
	shift
	bundle "$@" 2>"$T/said" >"$T/pipe" & writer=$!
	{ head -c 1 && "$command" && cat; } <"$T/pipe" >"$T/meanwhile"
	wait "$writer"
}
unsnap() { rm -r "$M/many/.snapshots/all"; }
meanwhile unsnap "$M/many" all
eq "a snapshot is removed: status" $? 0
eq "its blocks" "$(tar -tf "$T/meanwhile" | grep -c "/.*/")" 40
unblock() { for i in 36 37 38 39 40; do rm "$M/many/$(place $i)"; done; }
meanwhile unblock "$M/many"
eq "blocks are removed: status" $? 1
says "blocks are removed" "blocks not there any more: 5 of 40"
ok "the others are whole" bundle -t <"$T/meanwhile"

rm "$M/s/$(place 3)"
status "one is gone" 1 bundle "$M/s" "turn 1" >"$T/three"
says "one is gone" "blocks not there any more: 1 of 4"
ok "three are whole" bundle -t <"$T/three"
not "no such snapshot" "No such file" sh -c "$T/bin/kvfs-bundle $M/s none >$T/x"
not "no space" "not a space" sh -c "$T/bin/kvfs-bundle $T >$T/x"
not "a full disk" "No space left" sh -c "$T/bin/kvfs-bundle $M/s >/dev/full"
for bad in "" "-x -t" "-C $N" "-S $M/s" "-t -S" "-x $M/s" "$M/s a b" "-q"; do
	# shellcheck disable=SC2086
	bundle $bad </dev/null >"$T/x" 2>&1
	eq "usage '$bad'" $? 16
done

# An import reports blocks that did not become durable, without an SSD tier or without room
# in it.
mkdir "$N/s" && setfattr -n user.kvfs.quota.ssd -v 4K "$N/s" || fail "quota"
status "no room on SSD" 1 bundle -x -C "$N" <"$T/five"
says "no room on SSD" "s: not all blocks are durable: No space left"
rm -r "$N/s"
mkdir "$N/s" && setfattr -n user.kvfs.quota.ssd -v 4K "$N/s" || fail "quota"
setfattr -n user.kvfs.quota.dram -v 64K "$N/s" || fail "quota"
status "nor in memory" 1 bundle -x -C "$N" <"$T/five"
says "nor in memory" "s: not all blocks are durable: No space left"
says "nor in memory" "blocks not there any more: $((5 - $(find "$N/s" -name "[0-9a-f]*" -type f | wc -l))) of 5"
# The daemon of a removed store must end, or its control socket would stay.
unmount "$N"
for ((i = 0; i < 600; i++)); do
	pgrep -f -- "^[^ ]*kvfs .* $N\$" >/dev/null || break
	sleep 0.1
done
rm -r "$T/store2" && node ssd=0
status "no SSD" 0 bundle -x -C "$N" <"$T/five"
says "no SSD" "s: nothing is durable there: the mount has no SSD"
unmount "$N" || fail "umount"
stop
