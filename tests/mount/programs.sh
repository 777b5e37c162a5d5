#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# programs.sh - cp -a, tar, rsync, install, dd, mv, redirection, Python: copy blocks in and
# out with the real programs.
. "$(dirname "$0")/lib"
start
n=0
D=$T/src
mkdir -p "$D"
for i in 1 2 3 257 258; do
	mkdir -p "$D/$(printf %02x $((i % 256)))"
	block "$D/$(place $i)" --seed "$i" --bytes $((i * 3000 + 70000)) --meta "position=$i"
	touch -d "2024-01-0$((i % 5 + 1)) 10:00:00.5" "$D/$(place $i)"
done
compare() { # compare WHAT SPACE [FORMAT]: fail unless the space equals $D, also in the FORMAT of find(1)
	local format=${3:-%P %s %T@}
	diff -r "$D" "$M/$2" || fail "$1: the trees differ"
	diff <(cd "$D" && find . -type f -printf "$format\n" | sort) \
		<(cd "$M/$2" && find . -type f -printf "$format\n" | sort) ||
		fail "$1: sizes or times differ"
	find "$M/$2" -name '.*' | grep . && fail "$1: leftovers"
	return 0
}
ok "cp -a in" cp -a "$D" "$M/cpa"
compare "cp -a in" cpa
ok "cp -r in" cp -r "$D" "$M/cpr"
compare "cp -r in" cpr "%P %s"
ok "cp -a out" cp -a "$M/cpa" "$T/out.cpa"
diff -r "$D" "$T/out.cpa" || fail "cp -a out"
ok "tar in" sh -c "mkdir $M/tar && tar --format=pax -C $D -cf - . | tar -C $M/tar -xf -"
compare "tar in" tar
ok "tar out" sh -c "mkdir $T/out.tar && tar -C $M/tar -cf - . | tar -C $T/out.tar -xf -"
diff -r "$D" "$T/out.tar" || fail "tar out"
ok "tar -S out" sh -c "mkdir $T/out.tarS && tar -C $M/tar -S -cf - . | tar -C $T/out.tarS -xf -"
diff -r "$D" "$T/out.tarS" || fail "tar -S out"
ok "tar --xattrs in" sh -c "mkdir $M/tarx && tar --xattrs --xattrs-include='*' --format=pax -C $M/tar -cf - . | tar --xattrs --xattrs-include='*' -C $M/tarx -xf -"
compare "tar --xattrs in" tarx
ok "rsync -a in" rsync -a "$D/" "$M/rs/"
compare "rsync -a in" rs
again=$(rsync -a --itemize-changes "$D/" "$M/rs/")
eq "a second rsync sends nothing" "$(grep '^[<>]' <<< "$again")" ""
ok "rsync -a --checksum" rsync -a --checksum "$D/" "$M/rs/"
ok "rsync -aX in" rsync -aX "$M/rs/" "$M/rsx/"
compare "rsync -aX in" rsx
ok "rsync -aX out" rsync -aX "$M/rs/" "$T/out.rs/"
diff -r "$D" "$T/out.rs" || fail "rsync -aX out"
touch "$D/$(place 1)"
ok "rsync --delay-updates" rsync -a --delay-updates "$D/" "$M/delayed/"
compare "rsync --delay-updates" delayed
again=$(rsync -a --delay-updates --itemize-changes "$D/" "$M/delayed/")
eq "a second one sends nothing" "$(grep '^[<>]' <<< "$again")" ""
ok "rsync --delay-updates out" rsync -a --delay-updates "$M/delayed/" "$T/out.delayed/"
diff -r "$D" "$T/out.delayed" || fail "rsync --delay-updates out"
ok "rsync --partial --inplace" rsync -a --partial --inplace "$D/" "$M/inplace/"
compare "rsync --inplace" inplace
ok "rsync of a changed time" rsync -a "$D/" "$M/rs/"
again=$(rsync -a --itemize-changes "$D/" "$M/rs/")
eq "and then nothing more" "$(grep '^[<>]' <<< "$again")" ""
ok "rsync --delete" rsync -a --delete --exclude "$(key 1)" --delete-excluded "$D/" "$M/rs/"
absent "rsync --delete" "$M/rs/$(place 1)"

F=$D/$(place 2)
new() { # make a fresh space for one file; sets O
	n=$((n + 1))
	O=$M/one$n
	mkdir -p "$O/02"
	O=$O/$(place 2)
}
check() { same "$1" "$F" "$O"; }
new
ok "install" install -m 640 "$F" "$O"
check install
new
ok "install -D -p" install -D -p "$F" "$O"
check "install -D -p"
ok "install again" install "$F" "$O"
check "install again"
for bs in 512 4000 1M; do
	new
	ok "dd bs=$bs" dd if="$F" of="$O" bs=$bs
	check "dd bs=$bs"
done
new
ok "dd conv=fsync" dd if="$F" of="$O" bs=64K conv=fsync
check "dd conv=fsync"
eq "dd conv=fsync makes it durable" "$(xattr "$O" durable)" 1
new
ok "dd oflag=direct" dd if="$F" of="$O" bs=64K oflag=direct
check "dd oflag=direct"
new
cat "$F" > "$O" || fail "cat >"
check "cat >"
new
(head -c 10000 "$F"; tail -c +10001 "$F") 2>/dev/null > "$O"
check "two writers, one after the other, on one descriptor"
new
set -o noclobber
cat "$F" > "$O" || fail "cat > with noclobber"
set +o noclobber
check noclobber
new
tee "$O" < "$F" > /dev/null || fail tee
check tee
new
cp "$F" "$T/moved"
ok "mv from another file system" mv "$T/moved" "$O"
check mv
new
cp "$F" "$(dirname "$O")/.$(key 2).tmp" || fail "cp to a staging name"
eq "a staging name is not listed" "$(ls -A "$(dirname "$O")")" ""
same "it can be read by its maker" "$F" "$(dirname "$O")/.$(key 2).tmp"
ok "mv of a staging name" mv "$(dirname "$O")/.$(key 2).tmp" "$O"
check "mv of a staging name"
new
python3 - "$F" "$O" <<'P' || fail "python"
import os, sys
data = open(sys.argv[1], "rb").read()
with open(sys.argv[2], "wb") as f:
    f.write(data)
assert open(sys.argv[2], "rb").read() == data
P
check python
new
python3 - "$F" "$O" <<'P' || fail "out of order"
import os, random, sys
data = open(sys.argv[1], "rb").read()
pieces = [(i, data[i:i + 777]) for i in range(0, len(data), 777)]
random.Random(3).shuffle(pieces)
f = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_EXCL)
for at, piece in pieces:
    assert os.pwrite(f, piece, at) == len(piece)
assert os.pread(f, len(data), 0) == data
os.close(f)
P
check "writes out of order"
ok "cp of a file without --reflink" cp --sparse=never "$O" "$T/plain"
same "cp out" "$F" "$T/plain"
ok "cp --sparse=always out" cp --sparse=always "$O" "$T/sparse"
same "cp --sparse=always out" "$F" "$T/sparse"
ok "cat out" sh -c "cat $O > $T/cat"
same "cat out" "$F" "$T/cat"
ok "dd out" dd if="$O" of="$T/dd" bs=3000
same "dd out" "$F" "$T/dd"
# Copy the whole mount, without .kvfs, in the three ways of kvfs(1).
mkdir "$T/backup" "$T/backup.tar" "$T/backup.rs"
ok "cp of the mount" cp -a "$M"/* "$T/backup/"
ok "tar of the mount" sh -c "tar -C $M --exclude=./.kvfs -cf - . | tar -C $T/backup.tar -xf -"
ok "rsync of the mount" rsync -a --exclude=/.kvfs "$M/" "$T/backup.rs/"
for copy in backup backup.tar backup.rs; do
	absent "$copy" "$T/$copy/.kvfs"
	diff -r --exclude=.kvfs "$M" "$T/$copy" || fail "$copy differs from the mount"
done
ok "rm -rf of everything" rm -rf "$M"/[a-z]*
eq "nothing is left" "$(ls "$M")" ""
# Copy the files back: tar and rsync also restore the times, owner and mode of the root.
ok "the tar back" sh -c "tar -C $T/backup.tar -cf - . | tar -C $M -xf -"
diff -r --exclude=.kvfs "$M" "$T/backup.tar" || fail "tar back"
touch -d 2024-01-01 "$T/backup.rs"
ok "the rsync back" rsync -a "$T/backup.rs/" "$M/"
not "another mode of the root" "Operation not permitted" chmod 700 "$M"
stop
