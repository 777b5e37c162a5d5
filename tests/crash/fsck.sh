#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh: long
# fsck.sh - kvfs-fsck and the daemon on stores that were killed, lost their index, or were
# changed by an attacker: good blocks come back, removed blocks do not, no program dies.
. "$(dirname "$0")/lib"
BASE=$ALL,dram=32M,ssd=64M,segment=8M,hugepages=off,scrub=0
F=$B/kvfs-fsck
P=$B-points/kvfs
[ -x "$P" ] || fail "$P is not built: make POINTS=1"
block() { python3 "$here/../mount/mkblock.py" "$@" || fail mkblock.py; }
key_path() { printf '%s/s/%s' "$M" "$(place "$1")"; }
# fsck STATUS WORDS [OPTIONS]: fail unless kvfs-fsck exits with STATUS and
# prints WORDS
fsck() {
	local out rc
	out=$("$F" "${@:3}" "$S" 2>&1)
	rc=$?
	[ $rc = "$1" ] || fail "kvfs-fsck ${*:3}: status $rc, not $1: $out"
	[[ $out == *"$2"* ]] || fail "kvfs-fsck ${*:3}: does not say '$2': $out"
}
state() { tar -C "$S" --sort=name -cf - . | xxh128sum; }
save_all() {
	local i
	mkdir -p "$M/s"
	for i in {1..20}; do
		block "$T/b$i" --seed "$i" --bytes $((6000 * (i % 3 + 1)))
		put s "$i" "$T/b$i" || fail "put $i"
	done
	sync "$M/s"
}
# all_there FROM TO: fail unless the mount has these blocks, byte for byte, and
# no others
all_there() {
	local i
	for ((i = $1; i <= $2; i++)); do same "block $i" "$T/b$i" "$(key_path "$i")"; done
	eq "blocks" "$(find "$M/s" -type f ! -name .layout | wc -l)" $(($2 - $1 + 1))
}
index_lost() { rm -f "$S/index/data.mdb"; start; }

start
save_all
fsck 8 "in use by a daemon (pid $(daemon_pids))"
kill_daemon
umount -l "$M"
before=$(state)
fsck 0 "20 blocks"
fsck 0 clean --data
eq "a check changes the store" "$(state)" "$before"
python3 - "$("$F" --json --data "$S")" <<'P' || fail "JSON"
import json, sys
o = json.loads(sys.argv[1])
assert o["status"] == 0 and o["blocks"] == 20 and not o["clean"] and o["version"] == 3, o
assert o["bytes_accounted"] == o["bytes_held"] > 20 * 4096, o
P

# If the file of a space is missing, a rebuild would drop the space's blocks: it is refused.
mv "$S/spaces/000001" "$T/space"
before=$(state)
fsck 8 "lacks the file of space s" --rebuild
eq "a refused rebuild changes the store" "$(state)" "$before"
mv "$T/space" "$S/spaces/000001"
# The file of a space is written before the commit of its record.  A crash in between is no
# reason to refuse a rebuild.
for change in "chmod 711 $M/s" "mkdir $M/t" "rmdir $M/t"; do
	[[ $change != rmdir* ]] || { start && mkdir "$M/t" && stop; }
	KVFS_POINT=space.before_commit:1 "$P" -o "$BASE,control=$SOCK" "$S" "$M" || fail "no mount"
	$change 2> /dev/null && fail "$change: the daemon was not killed"
	umount -l "$M"
	fsck 1 "20 blocks" --rebuild
	start
	all_there 1 20
	rm -rf "$M/t"
	stop
done
# The index is lost, and the next mount rebuilds it.
index_lost
grep -q '^index=rebuilt (missing): 20 blocks, 1 spaces, 0 left out' "$M/.kvfs/config" || fail "config does not tell of the rebuilt index"
all_there 1 20
stop
fsck 0 clean --data

# Without the names of spaces a rebuild would drop all blocks: it is refused.
mv "$S/spaces" "$T/spaces"
before=$(state)
fsck 8 "spaces/ is missing" --rebuild
eq "a refused rebuild changes the store" "$(state)" "$before"
fsck 1 "put right" --repair
rm -r "$S/spaces"
mv "$S/index/data.mdb" "$T/data.mdb"
not "no index and no spaces" "spaces/ is missing" "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
mv "$T/spaces" "$S/spaces"
start
all_there 1 20
stop

# Something that is no file has the name of a segment file.
mv "$S/segments/000000.seg" "$T/seg"
mkdir "$S/segments/000000.seg"
not "a directory" "000000.seg: Is a directory; if this is not a segment file, move it away" \
	"$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
rmdir "$S/segments/000000.seg" && mkfifo "$S/segments/000000.seg"
not "a FIFO" "000000.seg: Invalid argument; if" timeout 60 "$B/kvfs" -o "$BASE,control=$SOCK,ro" "$S" "$M"
mv "$T/seg" "$S/segments/000000.seg"
start
all_there 1 20
stop
rm "$S/index/data.mdb"
fsck 4 "the index is missing"
fsck 4 "the index is missing" --repair
fsck 1 "20 blocks" --rebuild
fsck 0 "last end a crash" --data
start
all_there 1 20

# A removed block stays removed, even if a reader has its file open.
rm "$(key_path 1)"
exec 9< "$(key_path 2)"
rm "$(key_path 2)"
sync "$M/s"
cmp - "$T/b2" <&9 || fail "an open file that was removed changed"
kill_daemon
exec 9<&-
umount -l "$M"
fsck 0 clean
index_lost
all_there 3 20
kill_daemon
umount -l "$M"
fsck 1 "18 blocks" --rebuild
start
all_there 3 20
stop

# Change one byte of one block.
python3 - "$S"/segments/*.seg <<'P' || fail "changing a byte"
import random, sys
want = random.Random(7).randbytes(12000)[5000:5100]
for name in sys.argv[1:]:
    with open(name, "r+b") as f:
        at = f.read().find(want)
        if at >= 0:
            f.seek(at)
            f.write(bytes([want[0] ^ 1]))
            sys.exit(0)
sys.exit(1)
P
fsck 0 clean
fsck 4 "1 blocks with other bytes than sealed" --data
fsck 1 "put right" --data --repair
fsck 0 "17 blocks" --data
start
absent "the damaged block" "$(key_path 7)"
same "another one" "$T/b8" "$(key_path 8)"
stop

# Files beside the index are missing, cut short, or unknown.
rm "$S/store" "$S/spaces/000001"
truncate -s 8M "$S/segments/000000.seg"
touch "$S/odd" "$S/spaces/odd"
cp "$S/segments/000000.seg" "$S/segments/000099.seg"
fsck 4 "./odd: not the store's"
fsck 4 "000099.seg: the index does not have it"
fsck 1 "put right" --repair
fsck 0 "2 files that are not the store's"
rm "$S/odd" "$S/spaces/odd" "$S/index/data.mdb"
start
eq "blocks after all that" "$(find "$M/s" -type f ! -name .layout | wc -l)" 17
stop

# The file of users' quotas is damaged, or is not a regular file.
start
for uid in 1000 1001 1002; do
	setfattr -n user.kvfs.quota.ssd -v ${uid}K "$M/.kvfs/tenants/$uid" || fail "quota of $uid"
done
stop
fsck 0 "held
clean"
printf x | dd of="$S/tenants" bs=1 seek=70 conv=notrunc status=none
fsck 4 "1 damaged records of users' quotas"
eq "JSON" "$("$F" --json "$S" | grep -o '"kind": "tenants", "count": 1, "fixed": 0')" '"kind": "tenants", "count": 1, "fixed": 0'
fsck 1 "1 damaged records of users' quotas: put right" --repair
fsck 0 "held
clean"
start
eq "whole quotas" "$(for i in 0 1 2; do xattr "$M/.kvfs/tenants/100$i" quota.ssd; echo; done | grep -vcx 0)" 2
stop
mv "$S/tenants" "$T/tenants" && mkdir "$S/tenants"
fsck 4 "errors are left" --repair
rmdir "$S/tenants" && ln -s "$T/tenants" "$S/tenants"
fsck 4 "tenants: too large, or not a file"
fsck 1 "put right" --repair
[ ! -L "$S/tenants" ] || fail "the symbolic link is there"
fsck 0 "held
clean"

# Directories stand in place of files: a repair names them, leaves them, and mends the rest.
cp -a "$S" "$T/whole"
rm "$S/store" "$S/spaces/000001"
mkdir "$S/store" "$S/spaces/000001" "$S/spaces/000099" "$S/segments/000099.seg"
echo x > "$S/spaces/000098"
for name in ./store spaces/000001 spaces/000099 segments/000099.seg; do
	rm -rf "$T/again" && cp -a "$S" "$T/again"
	fsck 4 "$name: a directory in place of a file: move it away"
	fsck 4 "$name: a directory in place of a file: move it away" --repair
	absent "a stray file beside directories" "$S/spaces/000098"
	rm -rf "$S" && mv "$T/again" "$S"
done
fsck 4 "4 directories in place of files" --repair --quiet
eq "JSON of a repair" "$("$F" --repair --json "$S" | grep -o '"kind": "space_file", "count": 1, "fixed": 0')" '"kind": "space_file", "count": 1, "fixed": 0'
rmdir "$S/store" "$S/spaces/000001" "$S/spaces/000099" "$S/segments/000099.seg"
fsck 1 "put right" --repair
fsck 0 "held
clean"
rm -rf "$S" && mv "$T/whole" "$S"

# A mount that fails leaves a store that was cleanly unmounted clean.
rm "$S/store" && mkdir "$S/store"
not "no file of the store" "cannot write the index" "$B/kvfs" -o "$BASE,control=$SOCK" "$S" "$M"
rmdir "$S/store"
fsck 4 "last end clean"
start
stop
fsck 0 "last end clean"

# Wrong arguments of kvfs-fsck are refused.
"$F" > /dev/null 2>&1
eq "no store" $? 16
"$F" --odd "$S" > /dev/null 2>&1
eq "an unknown option" $? 16
"$F" --repair --rebuild "$S" > /dev/null 2>&1
eq "both" $? 16
not "not a store" "not a kvfs store" "$F" "$T"
not "not there" "No such file" "$F" "$T/nowhere"
mv "$S/index" "$T/index"
ln -s "$T/index" "$S/index"
not "a symbolic link" "must be directories" "$F" --repair "$S"
rm "$S/index" && mv "$T/index" "$S/index"
fsck 0 clean

# Random changes of the store: kvfs-fsck may find errors, but must not die.
python3 - "$F" "$S" "$T/hostile" 100 <<'P' || fail "a hostile store"
import os, random, shutil, subprocess, sys
tool, store, copy, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
r = random.Random(5)
drop = (lambda: (os.setgid(65534), os.setuid(65534))) if os.getuid() == 0 else None
status = {}
def damage(path):
    size = os.path.getsize(path)
    with open(path, "r+b") as f:
        for _ in range(r.choice([1, 3, 50])):
            at = r.randrange(size + 1)
            at = r.choice([at, at // 4096 * 4096 + r.randrange(200), size - 4096 + r.randrange(64)])
            if at < 0 or at >= size:
                continue
            f.seek(at)
            f.write(r.choice([r.randbytes(r.randrange(1, 40)), b"\xff" * 8, b"\0" * 8]))
    if r.random() < 0.1:
        os.truncate(path, r.randrange(size + 1))
for n in range(rounds):
    shutil.rmtree(copy, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", store, copy], check=True)
    files = [os.path.join(d, f) for d, _, fs in os.walk(copy) for f in fs if f != "lock" and f != "lock.mdb"]
    for path in r.sample(files, r.randrange(1, 3)):
        damage(path)
    if r.random() < 0.1:
        path = r.choice(files)
        os.unlink(path)
        r.choice([lambda: os.symlink("/dev/zero", path), lambda: os.mkfifo(path), lambda: os.mkdir(path), lambda: None])()
    if drop:
        for d, ds, fs in os.walk(copy):
            for f in [d] + [os.path.join(d, f) for f in fs]:
                os.chown(f, 65534, 65534, follow_symlinks=False)
        os.chmod(os.path.dirname(copy), 0o755)
    for options in (["--data"], ["--repair", "--json"], ["--rebuild"], ["--data", "--quiet"]):
        p = subprocess.run([tool, *options, copy], capture_output=True, timeout=60, preexec_fn=drop)
        status[p.returncode] = status.get(p.returncode, 0) + 1
        if p.returncode not in (0, 1, 4, 8):
            print(n, options, p.returncode, p.stdout, p.stderr)
            sys.exit(1)
print("%d hostile stores, four runs each; status: %s" % (rounds, status))
P

# The index is full of records of small blocks; the daemon and kvfs-fsck both
# rebuild it.
rm -rf "$S"
BASE=$ALL,dram=64M,ssd=128M,segment=8M,hugepages=off,scrub=0
start
"$B/tests/mount/storm" "$SOCK" s save 16384 4200 && sync "$M/s" || fail "small blocks"
many=$(metric 'kvfs_blocks{tier="ssd"}')
[ "$many" -gt 4000 ] || fail "only $many small blocks"
stop
fsck 1 "rebuilt: $many blocks" --rebuild
rm "$S/index/data.mdb"
start
eq "blocks of a full index" "$(metric 'kvfs_blocks{tier="ssd"}')" "$many"
stop
fsck 0 clean
