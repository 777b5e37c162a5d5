#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh - kvfs-bundle: a snapshot, and a whole space, to another node and back;
# a stream that is cut, damaged, or made to do harm.
. "$(dirname "$0")/lib"
start
bundle() { "$B/kvfs-bundle" "$@"; }
snap() { "$B/tests/mount/snap" "$M" "$@"; }
cat > "$T/layout" <<'L'
{"tensors": [{"name": "k", "dtype": "BF16", "shape": [4, 16, 64]},
             {"name": "v", "dtype": "BF16", "shape": [4, 16, 64]}], "tokens": 16}
L
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
eq "parents before children" "$(tar -tf "$T/four" | tr '\n' ' ')" \
	"s/ s/.layout s/$(place 9) s/$(place 3) s/$(place 7) s/$(place 1) s/ "
eq "all" "$(tar -tf "$T/five" | wc -l)" 8

# Another node: another store, another mount.
N=$T/node
mkdir "$N"
"$B/kvfs" -o "$BASE,control=$T/sock2" "$T/store2" "$N" || fail "the other node"
not "where no kvfs is" "not a mount of kvfs" bundle -x -C "$T/store" <"$T/four"
ok "import" bundle -x -C "$N" <"$T/four"
for i in 9 3 7 1; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
absent "what is not of the snapshot" "$N/s/$(place 5)"
same "the layout" "$M/s/.layout" "$N/s/.layout"
eq "the time" "$(stat -c %y "$N/s/$(place 7)")" "$(stat -c %y "$M/s/$(place 7)")"
eq "the digest" "$(xattr "$N/s/$(place 7)" digest)" "$(xattr "$M/s/$(place 7)" digest)"
ok "again" bundle -x -C "$N" <"$T/four"
ok "all, in the current directory" sh -c "cd $N && $B/kvfs-bundle -x <$T/five"
same "the fifth" "$T/b5" "$N/s/$(place 5)"
eq "durable" "$(awk '$1 == "kvfs_dirty_blocks" { print $2 }' "$N/.kvfs/metrics")" 0
rm -r "$N/s"
eq "by tar: what it says" "$(tar -C "$N" -xf "$T/five" 2>&1)" ""
diff -r "$M/s" "$N/s" || fail "tar: the trees differ"
rm -r "$N/s"

# Names are bytes, in every locale.
for name in mödel $'\xff\xfe' "a b"; do
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
ok "once more" bundle -x -C "$N" <"$T/four"

# A block with other bytes stays, and that is said; the rest comes.
rm "$N/s/$(place 3)" "$N/s/$(place 1)"
kv "$T/other" --seed 99
cp "$T/other" "$N/s/$(place 3)"
bundle -x -C "$N" <"$T/four" 2>"$T/said"
eq "another block of that key: status" $? 1
grep -q "$(key 3): here with other bytes" "$T/said" || fail "not said: $(cat "$T/said")"
same "it stays" "$T/other" "$N/s/$(place 3)"
same "the one after it" "$T/b1" "$N/s/$(place 1)"
rm -r "$N/s"
mkdir "$N/s" && sed 's/16\(, 64\)/32\1/g' "$T/layout" >"$N/s/.layout" || fail "another layout"
not "another layout" "s has another layout here" bundle -x -C "$N" <"$T/four"
rm -r "$N/s"

# Cut at every page: never more than what came whole; never a block half.
for ((n = 0; n < $(stat -c %s "$T/four"); n += 4096)); do
	head -c "$n" "$T/four" | bundle -x -C "$N" 2>"$T/said" && fail "cut at $n: taken as whole"
	[ -s "$T/said" ] || fail "cut at $n: nothing is said"
done
eq "before the cut" "$(find "$N/s" -type f -name '[0-9a-f]*' | wc -l)" 4
for i in 9 3 7 1; do same "block $i" "$T/b$i" "$N/s/$(place $i)"; done
rm -r "$N/s"

# One byte of a block's payload changed: that block is not taken, the others are.
python3 - "$T/four" "$T/b7" >"$T/damaged" <<'P'
import sys
stream, block = (open(name, "rb").read() for name in sys.argv[1:])
at = stream.index(block) + len(block) - 100
sys.stdout.buffer.write(stream[:at] + bytes([stream[at] ^ 1]) + stream[at + 1:])
P
for way in "-t" "-x -C $N"; do
	# shellcheck disable=SC2086
	bundle $way <"$T/damaged" 2>"$T/said"
	eq "damaged: status of $way" $? 1
	grep -q "$(key 7): damaged, not taken" "$T/said" || fail "not said: $(cat "$T/said")"
done
absent "the damaged one" "$N/s/$(place 7)"
same "the one after it" "$T/b1" "$N/s/$(place 1)"
eq "no staging file" "$(grep -c . <(find "$N/s/07" -name '.*[0-9a-f]*.bundle'))" 0
rm -r "$N/s"

# Made to do harm: other names, links, devices, no digest, more than it says.
python3 - "$T" "$(key 9)" <<'P'
import io, sys, tarfile
folder, key = sys.argv[1:]
mark = {"SCHILY.xattr.user.kvfs.bundle": "kvfs bundle 1"}
def member(name, type=tarfile.REGTYPE, data=b"", link="", **pax):
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname, info.pax_headers = type, len(data), link, pax
    return info, io.BytesIO(data)
def make(name, *members):
    with tarfile.open(f"{folder}/{name}", "w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, data)
begin = member("s/", tarfile.DIRTYPE, **mark)
digest = {"SCHILY.xattr.user.kvfs.digest": "0" * 32}
make("h-unmarked", member("s/", tarfile.DIRTYPE))
make("h-newer", member("s/", tarfile.DIRTYPE, **{"SCHILY.xattr.user.kvfs.bundle": "kvfs bundle 2"}))
make("h-up", member("../", tarfile.DIRTYPE, **mark))
make("h-deep", member("s/t/", tarfile.DIRTYPE, **mark))
make("h-root", member("/s/", tarfile.DIRTYPE, **mark))
make("h-other", begin, member("t/09/" + key, data=b"x", **digest))
make("h-dots", begin, member("s/../09/" + key, data=b"x", **digest))
make("h-place", begin, member("s/08/" + key, data=b"x", **digest))
make("h-name", begin, member("s/09/" + key + "0", data=b"x", **digest))
make("h-file", begin, member("s/09/../../x", data=b"x", **digest))
make("h-symlink", begin, member("s/09/" + key, tarfile.SYMTYPE, link="/etc/passwd", **digest))
make("h-hardlink", begin, member("s/09/" + key, tarfile.LNKTYPE, link="s/.layout", **digest))
make("h-device", begin, member("s/09/" + key, tarfile.CHRTYPE, **digest))
make("h-undigested", begin, member("s/09/" + key, data=b"x"))
make("h-layout", begin, member("s/.layout", data=b"{" * 70000))
make("h-empty", begin)
make("h-lies", begin, member("s/", tarfile.DIRTYPE, **{"SCHILY.xattr.user.kvfs.bundle": "blocks 1"}))
make("h-after", begin, member("s/", tarfile.DIRTYPE, **{"SCHILY.xattr.user.kvfs.bundle": "blocks 0"}), begin)
P
: >"$T/h-nothing"
for h in "$T"/h-*; do
	for way in "-t" "-x -C $N"; do
		# shellcheck disable=SC2086
		bundle $way <"$h" 2>"$T/said"
		eq "${h##*/}: status of $way" $? 2
		eq "${h##*/}: lines" "$(wc -l <"$T/said")" 1
	done
done
eq "nothing came of them" "$(find "$N" "$T" -path "$N/.kvfs" -prune -o -type f -newer "$T/h-nothing" \
	\( -name x -o -name "$(key 9)*" \) -print)" ""

# Two at once; the importer killed; a full space; a bad command line.
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
bundle -x -C "$N" <"$T/five" 2>"$T/said"
eq "beyond a quota: status" $? 1
grep -q "of 5 blocks were evicted again" "$T/said" || fail "not said: $(cat "$T/said")"
rm -r "$N/s"

block "$T/plain"
# What goes while it is exported: all was listed before the first byte came.
mkdir "$M/many"
for i in {1..40}; do put many "$i" "$T/plain" && keys[i]=$(key "$i") || fail "put $i"; done
ok "a snapshot of many" snap many make all "${keys[@]:1:40}"
meanwhile() { # COMMAND ARGUMENTS...: export, and run it when that has begun
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
grep -q "blocks not there any more: 5 of 40" "$T/said" || fail "not said: $(cat "$T/said")"
ok "the others are whole" bundle -t <"$T/meanwhile"

rm "$M/s/$(place 3)"
bundle "$M/s" "turn 1" >"$T/three" 2>"$T/said"
eq "one is gone: status" $? 1
grep -q "blocks not there any more: 1 of 4" "$T/said" || fail "not said: $(cat "$T/said")"
ok "three are whole" bundle -t <"$T/three"
not "no such snapshot" "No such file" sh -c "$B/kvfs-bundle $M/s none >$T/x"
not "no space" "not a space" sh -c "$B/kvfs-bundle $T >$T/x"
not "a full disk" "No space left" sh -c "$B/kvfs-bundle $M/s >/dev/full"
for bad in "" "-x -t" "-C $N" "-x $M/s" "$M/s a b" "-q"; do
	# shellcheck disable=SC2086
	bundle $bad </dev/null >"$T/x" 2>&1
	eq "usage '$bad'" $? 16
done
unmount "$N" || fail "umount"
stop
