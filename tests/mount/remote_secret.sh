#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# remote_secret.sh - which nodes find each other's blocks: with keys of libkvfs only nodes
# with the same remote_secret; with keys of an engine, or a seed in the layout, all nodes.
# kvfs refuses to share a space whose blocks no other node could use, and says why.
. "$(dirname "$0")/lib"
R=$T/remote
N=$T/node
mkdir "$R" "$N"
export B
head -c 32 /dev/urandom > "$T/secret"
cp "$T/secret" "$T/same"
head -c 32 /dev/urandom > "$T/other"
chmod 600 "$T/secret" "$T/same" "$T/other"
REMOTE=remote=dir:$R,remote_threshold=1
node1() { start "$REMOTE${1:+,remote_secret=$1}"; }
node2() {
	"$B/kvfs" -o "$BASE,control=$T/sock2,$REMOTE${1:+,remote_secret=$1}" "$T/store2" "$N" ||
		fail "the other node does not start"
}
make() { # make SPACE MEMBERS: make a space; its layout also has the JSON MEMBERS
	mkdir "$1" && echo "{\"tensors\": [{\"name\": \"k\", \"dtype\": \"U8\", \"shape\": [8192]}], \"tokens\": 4${2:+, $2}}" \
		>"$T/layout" && cp "$T/layout" "$1/.layout"
}
seed() { grep -o '"seed": *"[0-9a-f]*"' "$1/.layout"; }
# chain SPACE: the key that libkvfs makes for the first block of a prompt.
chain() {
	python3 - "$1" <<'P'
import ctypes
import os
import sys
lib = ctypes.CDLL(os.environ["B"] + "/libkvfs.so")
lib.kvfs_key_chain.restype = ctypes.c_long
mount, name = os.path.split(sys.argv[1].encode())
session, space, key = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.create_string_buffer(64)
assert lib.kvfs_open(mount, ctypes.byref(session)) == 0
assert lib.kvfs_space_open(session, name, None, 0, ctypes.byref(space)) == 0
assert lib.kvfs_key_chain(space, None, (ctypes.c_uint32 * 4)(1, 2, 3, 4), ctypes.c_size_t(4), None,
                          ctypes.c_size_t(0), key, ctypes.c_size_t(1)) == 1
print(key.raw[:16].hex())
P
}
save() { # save SPACE KEY: save a block, and wait until it is copied to the remote tier
	local i
	block "$T/b" --seed $((++n)) --tensor k:U8:8192:8192
	mkdir -p "$M/$1/${2:0:2}" && cp "$T/b" "$M/$1/${2:0:2}/$2" && sync "$M/$1" || fail "save in $1"
	for ((i = 0; i < 300; i++)); do
		case $(xattr "$M/$1/${2:0:2}/$2" tier) in *+remote) return ;; esac
		sleep 0.1
	done
	fail "$2 of $1 is not handed over"
}
n=0
came() { "$B/tests/mount/fetch" "$N" "$1" acquire 5000 "$2" | cut -d' ' -f1; }
refused() { # refused WHAT COMMAND...: fail unless COMMAND fails with EINVAL
	not "$1" "Invalid argument" "${@:2}"
}
why() { case $(xattr "$1" layout.error) in *remote_secret=*"kvfs-remote(7)"*) ;; *) fail "the reason for $1" ;; esac; }

# Nodes with the same secret have the same seed and make the same keys for a prompt, so one
# finds the blocks of the other.
node1 "$T/secret"
node2 "$T/same"
make "$M/s" '"share": true, "fingerprint": "0a"' || fail "with a secret"
make "$N/s" '"share": true, "fingerprint": "0a"' || fail "with the same secret"
eq "the same seed" "$(seed "$N/s")" "$(seed "$M/s")"
k=$(chain "$M/s")
eq "the same key" "$(chain "$N/s")" "$k"
save s "$k"
eq "it came" "$(came s "$k")" 1
same "the block" "$T/b" "$N/s/${k:0:2}/$k"
make "$M/t" '"fingerprint": "0b"' || fail "another model"
[ "$(seed "$M/t")" != "$(seed "$M/s")" ] || fail "another model has the same seed"
ok "shared later" setfattr -n user.kvfs.share -v 1 "$M/t"
if [ "$(id -u)" = 0 ]; then
	mkdir "$M/u" && chown 1001 "$M/u" && cp "$T/layout" "$M/u/.layout" || fail "another user's"
	[ "$(seed "$M/u")" != "$(seed "$M/t")" ] || fail "another user has the same seed"
fi

# Nodes with another secret make other keys, and find no blocks.
ended "$N" "$T/store2"
rm -rf "$T/store2"
node2 "$T/other"
make "$N/s" '"share": true, "fingerprint": "0a"' || fail "with another secret"
[ "$(seed "$N/s")" != "$(seed "$M/s")" ] || fail "another secret gives the same seed"
other=$(chain "$N/s")
[ "$other" != "$k" ] || fail "another secret gives the same keys"
eq "nothing came" "$(came s "$other")" 0

# A node without a secret refuses to share such spaces, and shows the reason; spaces that
# were shared with a secret before stay shared.
ended "$M" "$S"
node1
eq "shared as before" "$(xattr "$M/s" share)" 1
save s "$(printf %032x 1)"
refused "without a secret" make "$M/v" '"share": true'
absent "its layout" "$M/v/.layout"
why "$M/v"
make "$M/w" || fail "a space of this node"
refused "without a secret" setfattr -n user.kvfs.share -v 1 "$M/w"
why "$M/w"
eq "it is not shared" "$(xattr "$M/w" share)" 0
eq "nor listed" "$(getfattr --absolute-names -d "$M/w")" ""

# Spaces whose keys or seed the engine gives, and spaces without a layout, need no secret to
# be shared with other nodes.
make "$M/engine" '"share": true, "keys": "engine"' || fail "keys of an engine"
make "$M/given" '"share": true, "seed": "00000000000000ab"' || fail "a given seed"
mkdir "$M/plain" && setfattr -n user.kvfs.share -v 1 "$M/plain" || fail "no layout"
make "$N/engine" '"share": true, "keys": "engine"' || fail "keys of an engine, there"
make "$N/given" '"share": true, "seed": "00000000000000ab"' || fail "a given seed, there"
mkdir "$N/plain" && setfattr -n user.kvfs.share -v 1 "$N/plain" || fail "no layout, there"
k=$(printf '7f%030x' 7)
for space in engine given plain; do
	save $space "$k"
	eq "of $space" "$(came $space "$k")" 1
	same "of $space" "$T/b" "$N/$space/7f/$k"
done
# The owner of a space declares only later that its keys are an engine's.
ok "keys of an engine, said later" setfattr -n user.kvfs.layout \
	-v '{"tensors": [{"name": "k", "dtype": "U8", "shape": [8192]}], "keys": "engine"}' "$M/w"
ok "shared then" setfattr -n user.kvfs.share -v 1 "$M/w"

# On a node with a secret, a space without blocks gets the seed that the other nodes have.
make "$M/x" || fail "a space of this node"
before=$(seed "$M/x")
make "$M/y" && mkdir -p "$M/y/00" && cp "$T/b" "$M/y/00/$(printf %032x 9)" || fail "a space with a block"
ended "$M" "$S"
node1 "$T/other"
refused "a space with a block" setfattr -n user.kvfs.share -v 1 "$M/y"
ok "the reason" grep -q "remove its blocks" <(xattr "$M/y" layout.error)
rm -r "$M/y/00" && ok "without blocks" setfattr -n user.kvfs.share -v 1 "$M/y"
ok "shared" setfattr -n user.kvfs.share -v 1 "$M/x"
[ "$(seed "$M/x")" != "$before" ] || fail "the seed is as it was"
make "$N/x" '"share": true' || fail "the other's"
eq "the same seed" "$(seed "$N/x")" "$(seed "$M/x")"
ended "$M" "$S"
ended "$N" "$T/store2"

# Files that are refused as a secret.
chmod 640 "$T/other"
not "others may read it" "remote_secret=$T/other: its mode is 0640" "$B/kvfs" -o "$BASE,$REMOTE,remote_secret=$T/other" "$S" "$M"
(umask 077 && echo short > "$T/short")
not "short" "remote_secret=$T/short: shorter than 16 bytes" "$B/kvfs" -o "$BASE,$REMOTE,remote_secret=$T/short" "$S" "$M"
not "none" "remote_secret=$T/none: No such file" "$B/kvfs" -o "$BASE,$REMOTE,remote_secret=$T/none" "$S" "$M"
exit 0
