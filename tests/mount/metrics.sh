#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# metrics.sh - look-ups and hits are counted, in total and for each space; a hit rate below
# 100 % is visible.
. "$(dirname "$0")/lib"
ask() { "$B/tests/mount/ask" "$M" "$@"; }
start
block "$T/b"
put s 1 "$T/b" || fail put
put s 2 "$T/b" || fail put
put 'a "b\c' 1 "$T/b" || fail put
eq "match of four with two there" "$(ask s match "$(key 1)" "$(key 2)" "$(key 3)" "$(key 4)")" 2
eq "acquire of what match found" "$(ask s acquire "$(key 1)" "$(key 2)")" 2
eq "probe of one that is not there" "$(ask s probe "$(key 9)")" 0
eq "probe of another space" "$(ask 'a "b\c' probe "$(key 1)")" 1
eq "asked" "$(metric kvfs_asked_blocks_total)" 6
eq "found" "$(metric kvfs_found_blocks_total)" 3
eq "hits" "$(metric 'kvfs_hits_total{tier="dram"}')" 2
eq "misses" "$(metric 'kvfs_misses_total{cause="unseen"}')" 2
eq "misses behind the first of a look-up" "$(metric 'kvfs_misses_total{cause="other"}')" 1
eq "the same, of the space" "$(metric 'kvfs_space_asked_blocks_total{space="s"}')" 5
eq "the same, of the space" "$(metric 'kvfs_space_found_blocks_total{space="s"}')" 2
eq "the same, of the space" "$(metric 'kvfs_space_hits_total{space="s",tier="dram"}')" 2
eq "the same, of the space" "$(metric 'kvfs_space_misses_total{space="s"}')" 3
eq "acquire of what is not there" "$(ask s acquire "$(key 9)")" 0
eq "acquire of some that are" "$(ask s acquire "$(key 1)" "$(key 9)")" 1
eq "released is what was held" "$(metric kvfs_stray_releases_total)" 0
eq "by whoever held it" "$(metric kvfs_forced_releases_total)" 0
grep -qF 'kvfs_space_asked_blocks_total{space="a \"b\\c"} 1' "$M/.kvfs/metrics" || fail "a name with quotes"
grep -q '^asked *6 by match and probe, 3 found (50.0%)$' "$M/.kvfs/stats" || fail "stats: $(grep asked "$M/.kvfs/stats")"
eq "ages of the hits" "$(metric 'kvfs_hit_age_seconds_count{tier="dram"}')" "$(metric 'kvfs_hits_total{tier="dram"}')"
eq "times of probes" "$(metric 'kvfs_request_seconds_count{type="probe"}')" 3
eq "times of acquires" "$(metric 'kvfs_request_seconds_count{type="acquire"}')" 3
eq "version" "$(metric "kvfs_build_info{version=\"$("$B/kvfs" --version | cut -d' ' -f2)\"}")" 1
eq "blocks" "$(metric 'kvfs_space_blocks{space="s"}')" 2
[ "$(metric 'kvfs_space_bytes{space="s",tier="dram"}')" -gt 0 ] || fail bytes
mkdir "$M/"$'caf\xff' "$M/café" || fail mkdir
iconv -f UTF-8 -t UTF-8 "$M/.kvfs/metrics" > "$T/metrics" || fail "metrics that are not UTF-8"
eq "a name that is not UTF-8" "$(grep -c '^kvfs_space_blocks{space="caf/ff"}' "$T/metrics")" 1
eq "a name that is" "$(grep -c '^kvfs_space_blocks{space="café"}' "$T/metrics")" 1
setfattr -n user.kvfs.quota.ssd -v 10M "$M/s" || fail quota
eq "quota" "$(metric 'kvfs_space_quota_bytes{space="s",tier="ssd"}')" 10485760
setfattr -n user.kvfs.reserve.ssd -v 10M "$M/s" || fail reserve
eq "reserve" "$(metric 'kvfs_space_guaranteed_bytes{space="s",tier="ssd"}')" 10485760
sync "$M/s"
[ "$(metric 'kvfs_space_bytes{space="s",tier="ssd"}')" -gt 0 ] || fail "bytes on SSD"

# The hundred largest spaces have metrics of their own, the others a sum.
for i in $(seq 110); do mkdir "$M/n$i" || fail mkdir; done
mkdir "$M/other" || fail mkdir
put other 7 "$T/b" || fail put
eq "lines of a metric" "$(grep -c '^kvfs_space_blocks{' "$M/.kvfs/metrics")" 101
eq "the others" "$(metric 'kvfs_space_blocks{space="/other"}')" 0
eq "a space with this name" "$(metric 'kvfs_space_blocks{space="other"}')" 1
eq "the largest is among the hundred" "$(metric 'kvfs_space_blocks{space="s"}')" 2

# Histograms: blocks that engines save, and more than memory takes.
"$B/tests/crash/blocks" durable "$SOCK" 0 24 >/dev/null || fail "saves"
"$B/tests/crash/blocks" check "$SOCK" 0 24 >/dev/null || fail "loads"
eq "tokens of the blocks found" "$(metric kvfs_hit_tokens_total)" $((24 * $(sed -n 's/^#define CONTENT_TOKENS *//p' "$here/../crash/content.h")))
block "$T/big" --bytes 7000000
for i in $(seq 20 31); do put big "$i" "$T/big" || fail put; done
sync "$M/big"
cmp "$T/big" "$M/big/$(place 20)" || fail "the first of them"
for tier in dram ssd; do
	for what in age_seconds uses; do
		eq "evicted_$what of $tier" "$(metric "kvfs_evicted_${what}_count{tier=\"$tier\"}")" \
			"$(metric "kvfs_evictions_total{tier=\"$tier\",reason=\"space\"}")"
	done
done
[ "$(metric 'kvfs_evicted_uses_bucket{tier="dram",le="0"}')" -gt 0 ] || fail "evicted blocks without a use"
for what in 'request_seconds_sum{type="save"}' ssd_seconds_sum'{op="'{read,write,sync,commit}'"}'; do
	awk -v n="kvfs_$what" '$1 == n && $2 > 0 && $2 < 600 { found = 1 } END { exit !found }' "$M/.kvfs/metrics" ||
		fail "kvfs_$what: $(metric "kvfs_$what")"
done
eq "commits" "$(metric 'kvfs_ssd_seconds_count{op="commit"}')" "$(metric kvfs_commits_total)"
# Buckets are cumulative, and the last is the count.
awk -F'[{}]' '/_bucket\{/ { name = $1 $2; sub(/,?le=.*/, "", name); n = $3 + 0
		if (name == last && n < before) exit 1
		last = name; before = n }
	/_count\{/ && $3 + 0 != before { exit 1 }' "$M/.kvfs/metrics" || fail "buckets"
eq "a metric is typed once" "$(grep '^# TYPE' "$M/.kvfs/metrics" | sort | uniq -d)" ""
eq "config has each word once" "$(cut -d= -f1 "$M/.kvfs/config" | sort | uniq -d)" ""
stop
