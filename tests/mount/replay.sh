#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# replay.sh - kvfs-replay: hits counted by hand, both forms of output, refused traces and
# options, and files on a live mount with the simulated hit rate.
. "$(dirname "$0")/lib"
R=$B/kvfs-replay
# line LENGTH ID...: print a request of a trace
line() {
	local length=$1 ids
	shift
	ids=$(printf '%s, ' "$@")
	echo "{\"timestamp\": 0, \"input_length\": $length, \"output_length\": 1, \"hash_ids\": [${ids%, }]}"
}
# rate POLICY BLOCKS FILE: print the hits, and the blocks asked for
rate() { "$R" --policy "$1" --blocks "$2" --block-size 10 "$3" | sed -E 's/.*hits=([0-9]+) blocks_asked=([0-9]+) .*/\1 \2/'; }

# A chain, the same again, and one that shares its first block: 3 + 1 hits of 8; the last
# id of each request is of a partial block.
{ line 35 1 2 3 4; line 35 1 2 3 4; line 29 1 5 6; } > "$T/a"
for p in lru flru lhd bound; do
	eq "$p: all fits" "$(rate $p 100 "$T/a")" "4 8"
done
# Room for two blocks: of a longer request the head stays, so the repeated request has 2
# hits; then 7, 8 displace 1, 2 and the chain is lost.  The optimal cache keeps 1, 2.
{ line 30 1 2 3; line 30 1 2 3; line 20 7 8; line 30 1 2 3; } > "$T/b"
eq "lru: the head stays" "$(rate lru 2 "$T/b")" "2 11"
eq "bound: the new one is not let in" "$(rate bound 2 "$T/b")" "4 11"
# A gap: block 2 of the chain was never requested as 9, so no later block hits.
{ line 30 1 2 3; line 30 1 9 3; } > "$T/c"
eq "a hit is a prefix" "$(rate lru 100 "$T/c")" "1 6"
# Leaves are evicted first: 3 goes before 1 and 2, which are hits later.
{ line 30 1 2 3; line 10 4; line 30 1 2 3; } > "$T/d"
eq "leaf-first" "$(rate lru 3 "$T/d")" "2 7"
echo '{"input_length": 40, "block_size": 20, "hash_ids": [1, 2, 3]}' > "$T/e"
eq "the line's own block size" "$(rate lru 9 "$T/e")" "0 2"
eq "the fixed line" "$("$R" --policy flru --blocks 100 --block-size 10 "$T/a")" \
	"policy=flru blocks=100 requests=3 hits=4 blocks_asked=8 hit_rate=0.5000"
gzip -k "$T/a"
eq "gzip" "$(rate lru 100 "$T/a.gz")" "4 8"
eq "bytes" "$("$R" --policy lru --bytes 60K --token-bytes 1K --block-size 10 "$T/b" | cut -d' ' -f2)" blocks=6
"$R" --json --bound --block-size 10 --blocks 2,3 "$T/b" > "$T/json" || fail json
python3 - "$T/json" <<'P' || fail "json"
import json, sys
rows = json.load(open(sys.argv[1]))
policies = {r["policy"] for r in rows}
assert len(rows) == 2 * len(policies) and policies == {"lru", "flru", "lhd", "bound"}
assert all(0 <= r["hits"] <= r["blocks_asked"] == 11 for r in rows)
P
for policy in arc s3fifo sieve ARC S3-FIFO S3FIFO SIEVE; do
	not "$policy is withdrawn" "$policy: withdrawn" "$R" --policy lru,$policy "$T/a"
done
for o in --csv "--plot $T/svg" "--mount $M"; do
	# shellcheck disable=SC2086
	not "$o is withdrawn" "--csv, --plot and --mount are withdrawn" "$R" $o "$T/a"
	absent "$o is withdrawn" "$T/svg"
done
# refused WHAT FILE LINE REASON - check that kvfs-replay rejects FILE at LINE for REASON
refused() {
	local out rc
	out=$("$R" --policy lru "$2" 2>&1 > "$T/out")
	rc=$?
	eq "$1: exit status" $rc 1
	case $out in
	"kvfs-replay: $2:$3: "*"$4"*) ;;
	*) fail "$1: says '$out'" ;;
	esac
	[ -s "$T/out" ] && fail "$1: prints a result"
}
bad() { { line 512 1; echo "$2"; } > "$T/bad"; refused "$1" "$T/bad" 2 "$3"; }
bad "no JSON" 'nonsense' "expected near"
bad "half a line" '{"input_length": 3' "expected"
bad "no object" '[1]' "not a JSON object"
bad "no length" '{"hash_ids": []}' "input_length is missing"
bad "a negative length" '{"input_length": -1, "hash_ids": []}' "input_length is not a number"
bad "a length in words" '{"input_length": "x", "hash_ids": []}' "input_length is not a number"
bad "no ids" '{"input_length": 1}' "hash_ids is missing"
bad "ids in words" '{"input_length": 512, "hash_ids": ["x"]}' "hash_ids[0] is not a number"
bad "too few ids" '{"input_length": 1024, "hash_ids": [1]}' "1 hash_ids for 2 full blocks"
bad "block size 0" '{"input_length": 1, "block_size": 0, "hash_ids": []}' "block_size is not a number"
refused "no such file" "$T/none" 0 "No such file"
: > "$T/empty"
refused "an empty file" "$T/empty" 1 "no requests"
head -c 60 "$T/a.gz" > "$T/cut.gz"
out=$("$R" "$T/cut.gz" 2>&1) && fail "a file cut short: accepted"
for o in "--policy mru" "--blocks 0" "--blocks x" "--bytes 1K --blocks 1" --nonsense ""; do
	# shellcheck disable=SC2086
	"$R" $o ${o:+"$T/a"} > "$T/out" 2>&1
	eq "refused: '$o'" $? 2
done

# The live mount against the simulation, with chats over shared prompts.
python3 - > "$T/chats" <<'P'
import random
r = random.Random(5)
n = 0
def new(k):
    global n
    n += k
    return list(range(n - k, n))
systems = [new(r.randint(2, 8)) for _ in range(8)]
talks = []
for _ in range(1500):
    if talks and r.random() < 0.6:
        t = r.choice(talks)
        t += new(r.randint(1, 4))
        if r.random() < 0.3:
            talks.remove(t)
    else:
        t = r.choice(systems) + new(r.randint(2, 20))
        talks.append(t)
        if len(talks) > 60:
            talks.pop(0)
    print('{"input_length": %d, "block_size": 1, "hash_ids": %s}' % (len(t), t))
P
# lhd has as many hits as lru if only the last use predicts the next one, and more if many
# blocks are requested once.
rates() { "$R" --policy lru,lhd --blocks "$2" "$1" | awk -F '[= ]' -v least="$3" '
	$2 == "lru" { lru[$4] = $8 }
	$2 == "lhd" && $8 < least * lru[$4] { print $4 " blocks: " $8 " hits, lru " lru[$4]; bad = 1 }
	END { exit bad }'; }
rates "$T/chats" 300,1000,1180,1364,2000,4000,8000 0.99 || fail "lhd is worse than lru"
python3 - > "$T/once" <<'P'
n = 100000
for i in range(4000):
    ids = [i % 50 * 10 + k for k in range(10)]
    if i % 2:
        ids = list(range(n, n + 12))
        n += 12
    print('{"input_length": %d, "block_size": 1, "hash_ids": %s}' % (len(ids), ids))
P
eq "lru: all is displaced before it comes again" "$(rate lru 300 "$T/once")" "0 44000"
[ "$(rate lhd 300 "$T/once" | cut -d' ' -f1)" -gt 15000 ] || fail "lhd learns nothing"

# live POLICY: the chats as files on the mount hit as often as simulated, within 1 %.
live() {
	local hits blocks computed
	hits=$(python3 - "$T/chats" "$M/chats" <<'P'
import json, os, struct, sys
size, hits = 4096, 0
def name(i):
    return "%02x%030x" % (i % 256, i)
def block(i, n, parent):
    meta = {"kvfs": "1", "key": name(i), "position": str(n), "tokens": "1"}
    if n:
        meta["parent"] = name(parent)
    text = json.dumps({"__metadata__": meta, "kv": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    text += b" " * (-(8 + len(text)) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(size)
os.mkdir(sys.argv[2])
for i in range(256):
    os.mkdir("%s/%02x" % (sys.argv[2], i))
for line in open(sys.argv[1]):
    ids = json.loads(line)["hash_ids"]
    paths = ["%s/%.2s/%s" % (sys.argv[2], name(i), name(i)) for i in ids]
    found = []
    for path in paths:
        try:
            found.append(os.open(path, os.O_RDONLY))
        except FileNotFoundError:
            break
    hits += len(found)
    for n in range(len(found), len(ids)):
        try:
            with open(paths[n], "xb") as f:
                f.write(block(ids[n], n, ids[n - 1]))
        except FileExistsError:
            pass
    for fd in reversed(found):
        os.pread(fd, 8, 0)
        os.close(fd)
print(hits)
P
	) || fail "live: $1"
	blocks=$(sed -En 's/.*%\), ([0-9]+) blocks.*/\1/p' "$M/.kvfs/stats" | head -1)
	computed=$(rate "$1" "$blocks" "$T/chats")
	computed=${computed% *}
	if ((hits < 1000 || hits * 100 < computed * 99 || hits * 100 > computed * 101)); then
		fail "$1: $hits hits, $computed computed"
	fi
}
for p in lhd flru lru; do
	start "dram=16M,ssd=0,evict=$p"
	live "$p"
	grep -q "^evict  *$p: " "$M/.kvfs/stats" || fail "stats do not show the policy"
	eq "the policy's metric" "$(metric "kvfs_eviction_policy{name=\"$p\"}")" 1
	for x in 1x 2x 4x inf; do
		awk "BEGIN { exit !($(metric "kvfs_estimated_hit_rate{dram=\"$x\"}") > 0.05) }" || fail "estimate $x"
	done
	[ "$(metric kvfs_remembered_total)" -gt 0 ] || fail "nothing is remembered"
	stop
	rm -rf "$S"
done
