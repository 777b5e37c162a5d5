#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_lazy.sh - the remote tier's directory is on a file server that does not answer:
# mounts begin, spaces are made, and acquires end at their deadline.  The daemon logs one
# line when it stops using the directory, and one when it uses the directory again, because
# the server answers or another server is mounted in its place.
. "$(dirname "$0")/lib"
R=$T/remote
L=$T/lazy
HANG=$T/HANG
mkdir "$R" "$L"
unhang() { rm -f "$HANG"; }
trap 'unhang; cleanup' EXIT
cat > "$T/layout" <<'J'
{"tensors": [{"name": "k", "dtype": "U8", "shape": [8192]}], "keys": "engine", "share": true}
J
fetch() { # MS N...: acquire the blocks N; set `got` to how many came, `took` to the milliseconds
	local ms=$1 keys=() out
	shift
	for n in "$@"; do keys+=("$(key "$n")"); done
	out=$("$B/tests/mount/fetch" "$M" s acquire "$ms" "${keys[@]}") || fail "fetch: $out"
	took=${out#* }
	got=${out% *}
}
lazy() {
	"$B/tests/mount/lazy" "$R" "$HANG" "$L" 2>/dev/null & server=$!
	for ((i = 0; i < 300; i++)); do mountpoint -q "$L" && return; sleep 0.1; done
	fail "the lazy directory"
}
begin() { # begin OPTIONS: mount, with the daemon's messages in $T/said
	"$B/kvfs" -f -o "$BASE,control=$SOCK,remote=dir:$L,remote_threshold=1${1:+,$1}" "$S" "$M" 2>"$T/said" &
	for ((i = 0; i < 300; i++)); do mountpoint -q "$M" && return; sleep 0.1; done
	fail "kvfs does not start: $(cat "$T/said")"
}
given_up() { # given_up WHAT: acquire blocks until the daemon has stopped using the directory
	for ((i = 0; i < 600; i++)); do
		[ "$(metric kvfs_remote_open)" = 0 ] && return
		fetch 100 $((asked += 1))
		[ "$took" -lt 1000 ] || fail "it took $took ms of 100"
	done
	fail "$1: it is not given up"
}
back() {
	for ((i = 0; i < 600; i++)); do [ "$(metric kvfs_remote_open)" = 1 ] && return; sleep 0.1; done
	fail "$1: it is not used again"
}
said() { grep -c "remote=dir:$L: $1" "$T/said"; }
asked=1000
lazy

# Make blocks that only the backend has.
begin
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
for i in $(seq 8); do
	block "$T/b$i" --seed "$i" --tensor k:U8:8192:8192
	put s "$i" "$T/b$i" || fail "put $i"
done
sync "$M/s"
for ((i = 0; i < 600; i++)); do [ "$(find "$R" -path '*/2-*/*' -type f | wc -l)" = 8 ] && break; sleep 0.1; done
stop
rm -rf "$S"
begin
mkdir "$M/s" && cp "$T/layout" "$M/s/.layout" || fail "the space"
fetch 30000 1 2
eq "while it answers" "$got" 2

# The directory hangs: spaces can be made, and the daemon logs that the tier is given up.
touch "$HANG"
for i in $(seq 6); do
	(mkdir "$M/l$i" && cp "$T/layout" "$M/l$i/.layout") & pids[i]=$!
done
for i in $(seq 6); do wait "${pids[i]}" || fail "layout $i while it hangs"; done
given_up "it hangs"
eq "said once" "$(said "given up")" 1
not "its health" "the remote tier is not used" "$B/kvfs" --health "$M"
"$B/kvfs" --health "$M" 2>/dev/null
eq "it is degraded" $? 3
fetch 3000 3 4
[ "$took" -lt 1000 ] || fail "it took $took ms: one that was given up is waited for"
same "what is here" "$T/b1" "$M/s/$(place 1)"
unhang
back "it answers"
eq "said once" "$(said "it is back")" 1
ok "well" "$B/kvfs" --health "$M"
fetch 30000 3 4
eq "and all is well" "$got" 2

# The server dies, and another one is mounted at its place.
kill -KILL $server
given_up "it died"
eq "said again" "$(said "given up")" 2
umount -l "$L"
lazy
back "another at its place"
fetch 30000 5 6
eq "of the one that is mounted anew" "$got" 2
stop

# A directory that hangs at mount is reported within seconds; with remote_optional the mount
# works without the directory.
touch "$HANG"
begun=$SECONDS
not "at mount" "dir:$L: " "$B/kvfs" -o "$BASE,control=$SOCK,remote=dir:$L" "$S" "$M"
[ $((SECONDS - begun)) -lt 10 ] || fail "the mount took $((SECONDS - begun)) s to fail"
begin remote_optional
fetch 3000 7 8
eq "without it" "$got" 0
eq "said" "$(said "")" 1
unhang
back "with remote_optional"
fetch 30000 7 8
eq "it is there now" "$got" 2
stop
unmount "$L"
