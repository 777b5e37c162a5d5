#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_lazy.sh - a directory on a server that does not answer, before one that
# does: mounts begin, layouts are written, and what the other has is found.
. "$(dirname "$0")/lib"
R=$T/remote
L=$T/lazy
G=$T/good
HANG=$T/HANG
mkdir "$R" "$L" "$G"
unhang() { rm -f "$HANG"; }
trap 'unhang; cleanup' EXIT
cat > "$T/layout" <<'J'
{"tensors": [{"name": "k", "dtype": "U8", "shape": [8192]}], "share": true}
J
fetch() { # MS N...: got and took
	local ms=$1 keys=() out
	shift
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$M" s acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
open() { sed -n "s/^kvfs_remote_open{backend=\"$1\"} //p" "$M/.kvfs/metrics"; }
lazy() {
	"$B/tests/mount/lazy" "$R" "$HANG" "$L" 2>/dev/null & server=$!
	for ((i = 0; i < 300; i++)); do mountpoint -q "$L" && return; sleep 0.1; done
	fail "the lazy directory"
}
lazy

# Blocks that only the good backend has.
start "remote=dir:$G,remote_threshold=1"
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
for i in $(seq 8); do
	block "$T/b" --seed "$i" --tensor k:U8:8192:8192
	put s "$i" "$T/b" || fail "put $i"
done
sync "$M/s"
for ((i = 0; i < 600; i++)); do [ "$(find "$G" -name '*.digest' | wc -l)" -ge 9 ] && break; sleep 0.1; done
stop
rm -rf "$S"
start "remote=dir:$L,remote=dir:$G,remote_threshold=1"
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
fetch 30000 1 2
eq "of the second, while both answer" "$got" 2
[ -d "$R/.part" ] || fail "the lazy one is not used"

# The backend hangs during layouts of many spaces: each ends, and the daemon lives.
touch "$HANG"
for i in $(seq 6); do
	(mkdir "$M/l$i" && cp "$T/layout" "$M/l$i/.layout") & pids[i]=$!
done
for i in $(seq 6); do wait "${pids[i]}" || fail "layout $i while it hangs"; done
ok "the daemon answers" "$B/kvfs" --health "$M"
for ((i = 0; i < 600; i++)); do
	[ "$(open 0)" = 0 ] && break
	fetch 100 $((100 + i))
done
eq "not asked any more" "$(open 0)" 0
for i in 3 4 5 6; do
	fetch 30000 "$i"
	eq "block $i of the second, while the first hangs" "$got" 1
	[ "$took" -lt 1500 ] || fail "it took $took ms: the first is waited for"
done
unhang
for ((i = 0; i < 600; i++)); do [ "$(open 0)" = 1 ] && break; sleep 0.1; done
eq "asked again when it answers" "$(open 0)" 1
fetch 30000 7 8
eq "and all is well" "$got" 2

# The server dies, and another one is mounted at its place.
kill -KILL $server
for ((i = 0; i < 600; i++)); do
	[ "$(open 0)" = 0 ] && break
	fetch 100 $((1000 + i))
done
eq "not asked any more when it died" "$(open 0)" 0
umount -l "$L"
lazy
for ((i = 0; i < 600; i++)); do [ "$(open 0)" = 1 ] && break; sleep 0.1; done
eq "the one that is mounted anew is asked" "$(open 0)" 1
stop

# A backend that hangs at mount is reported within seconds; with remote_optional the mount
# works without it.
touch "$HANG"
not "at mount" "Connection timed out" "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$L" "$S" "$M"
"$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$L,remote=dir:$G,remote_threshold=1,remote_optional" "$S" "$M" 2>"$T/said" ||
	fail "remote_optional: $(cat "$T/said")"
grep -q "$L: Connection timed out" "$T/said" || fail "not said: $(cat "$T/said")"
fetch 30000 1 2
eq "without it" "$got" 2
unhang
stop
unmount "$L"
