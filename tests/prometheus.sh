#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# prometheus.sh - Debian's Prometheus scrapes a live `kvfs exporter`, answers every query of the
# dashboard, and fires each alert of tools/grafana/alerts.yml for a fault of its own.  Exits 77
# without Prometheus.  PICTURE=FILE.png draws the panels of the dashboard over a minute of load in
# chromium, for OPERATING.md, and prints `kvfs top` of that minute.
cd "$(dirname "$0")/.." || exit 1
. tests/mount/lib
here=$PWD/tests/mount
needs_root
R=$T/remote
if ! command -v prometheus >/dev/null; then
	echo "no Prometheus: install the package prometheus"
	exit 77
fi
# query TEXT: print the values of the query's result; alerts: print the names of those that fire
query() {
	python3 - "$prometheus/api/v1/query?query=" "$1" <<-'END'
		import json, sys, urllib.parse, urllib.request
		with urllib.request.urlopen(sys.argv[1] + urllib.parse.quote(sys.argv[2]), timeout=20) as file:
		    print(*(row["value"][1] for row in json.load(file)["data"]["result"]))
	END
}
alerts() {
	python3 - "$prometheus/api/v1/alerts" <<-'END'
		import json, sys, urllib.request
		with urllib.request.urlopen(sys.argv[1], timeout=20) as file:
		    rows = json.load(file)["data"]["alerts"]
		print(*sorted({row["labels"]["alertname"] for row in rows if row["state"] == "firing"}))
	END
}
# fires NAME [COMMAND...]: repeat COMMAND until the alert fires
fires() {
	local i name=$1
	shift
	for ((i = 0; i < 200; i++)); do
		"$@"
		case " $(alerts) " in *" $name "*) return ;; esac
		sleep 0.1
	done
	fail "$name does not fire: $(alerts)"
}
free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

mkdir "$R"
start "remote=dir:$R,remote_threshold=1"
prometheus=http://127.0.0.1:$(free_port)
"$B/kvfs" exporter -p "$SOCK" 127.0.0.1:0 >"$T/url" &
until [ -s "$T/url" ]; do sleep 0.05; done
sed 's/ for: .*/ for: 0s/' tools/grafana/alerts.yml >"$T/alerts.yml"
cat >"$T/prometheus.yml" <<END
global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs: [{job_name: kvfs, static_configs: [{targets: ["$(cut -d/ -f3 "$T/url")"]}]}]
END
prometheus --config.file="$T/prometheus.yml" --storage.tsdb.path="$T/tsdb" --log.level=warn \
	--web.listen-address="${prometheus#*//}" >"$T/log" 2>&1 &
for ((i = 0; i < 300; i++)); do [ "$(query 'up{job="kvfs"}' 2>/dev/null)" = 1 ] && break; sleep 0.1; done
eq "Prometheus scrapes the exporter" "$(query 'up{job="kvfs"}')" 1

# Blocks for all tiers, and look-ups of all kinds
mkdir "$M/s" && cat >"$M/s/.layout" <<'END' || fail "the space"
{"tensors": [{"name": "k", "dtype": "U8", "shape": [8192]}], "keys": "engine", "share": true}
END
for i in $(seq 12); do
	block "$T/b" --seed "$i" --tensor k:U8:8192:8192
	put s "$i" "$T/b" || fail "put $i"
done
sync "$M/s"
setfattr -n user.kvfs.tier -v ssd "$M/s/$(place 2)" || fail "tier"
for i in 1 2 3; do
	"$B/tests/mount/ask" "$M" s match "$(key 1)" "$(key 99)" >/dev/null
	"$B/tests/mount/fetch" "$M" s acquire 1000 "$(key 1)" "$(key 2)" "$(key 9$i)" >/dev/null
	sleep 1
done
"$B/tests/crash/blocks" durable "$SOCK" 0 24 >/dev/null || fail "saves"
sleep 3
eq "alerts without a fault" "$(alerts)" ""

block "$T/big" --bytes 7000000
for i in $(seq 20 31); do put big "$i" "$T/big" || fail "put $i"; done
sync "$M/big"
fires KvfsEvictsYoungBlocks
python3 - tools/grafana/dashboard.json >"$T/queries" <<'END'
import json, sys
with open(sys.argv[1]) as file:
    panels = json.load(file)["panels"]
for panel in panels:
    for target in panel.get("targets", []):
        print(target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*"))
END
[ "$(wc -l <"$T/queries")" -ge 25 ] || fail "queries of the dashboard: $(cat "$T/queries")"
while IFS= read -r text; do
	query "$text" | grep -q '[0-9]' || fail "no value: $text"
done <"$T/queries"

if [ -n "${PICTURE:-}" ]; then
	(sleep 40; "$B/kvfs" top -n 5 -p "$SOCK") &
	top=$!
	for i in $(seq 100 220); do
		[ $((i % 4)) != 0 ] || put big "$i" "$T/big"
		"$B/tests/mount/fetch" "$M" big acquire 1000 "$(key $((i - i % 4)))" "$(key $((i - i % 40)))" >/dev/null
		"$B/tests/mount/fetch" "$M" s acquire 1000 "$(key 1)" "$(key 2)" "$(key 3)" "$(key "$i")" >/dev/null
		"$B/tests/mount/ask" "$M" s match "$(key 1)" "$(key 2)" "$(key $((i % 8 * 9)))" >/dev/null
		sleep 0.4
	done
	wait $top
	python3 tests/panels.py "$prometheus" tools/grafana/dashboard.json 60 >"$T/x.svg" &&
		timeout 120 python3 "$here/browser.py" "$T/x.svg" "$PICTURE" 1200 640 || fail "the picture"
fi

ask_remote() { "$B/tests/mount/fetch" "$M" s acquire 200 "$(key $((asked += 1)))" >/dev/null; }
asked=1000
mv "$R" "$R.gone"
fires KvfsRemoteClosed ask_remote
mv "$R.gone" "$R"

# Damage the blocks that fill a file alone, then lose the bytes of all files.
for i in $(seq 12); do setfattr -n user.kvfs.tier -v ssd "$M/s/$(place "$i")" || fail "tier of $i"; done
for file in "$S"/segments/*.seg; do
	dd if=/dev/urandom of="$file" bs=4096 seek=1000 count=1 conv=notrunc status=none
done
setfattr -n user.kvfs.tier -v ssd "$M/big/$(place 31)" || fail "tier"
cat "$M/big/$(place 31)" >/dev/null 2>&1 && fail "a damaged block can be read"
fires KvfsDamagedBlocks
truncate -s 0 "$S"/segments/*.seg
unreadable() { for i in $(seq 12); do cat "$M/s/$(place "$i")" >/dev/null 2>&1; done; }
fires KvfsSsdDegraded unreadable

kill -KILL "$(pgrep -f -- "^[^ ]*kvfs -o .*$T/" | head -n 1)"
umount -l "$M"
fires KvfsDown
eq "alerts that fired" "$(query 'count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[1h]))' | wc -w)" \
	"$(grep -c 'alert:' tools/grafana/alerts.yml)"
