#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# events.sh - `kvfs events`: each change of a block's tiers is a line; after random changes, SIGKILL of
# the daemon or of the command, and a pause of the command, the lines give what the daemon lists.
. "$(dirname "$0")/lib"
needs_root setpriv
kvfs() { "$B/kvfs" "$@"; }
# follow FILE [OPTIONS]: print the events of the space s to FILE, from now on
follow() {
	local file=$1
	shift
	: >"$file"
	"$B/kvfs" events s -p "$SOCK" "$@" >"$file" 2>"$T/err" &
	reader=$!
	says "$file" overflow
}
# says FILE TEXT: wait until FILE has TEXT
says() {
	local i
	for ((i = 0; i < 600; i++)); do
		grep -q -- "$2" "$1" && return
		sleep 0.1
	done
	fail "no '$2' among the events: $(tail -n 5 "$1"; cat "$T/err")"
}
count() { grep -c -- "$2" "$1"; }
end() { kill "$@" "$reader" && wait "$reader" 2>/dev/null; }
# sees FILE: wait until the view that the events in FILE give is that of a listing
sees() {
	local i
	for ((i = 0; i < 100; i++)); do
		kvfs ls -b s --json -p "$SOCK" >"$T/listed" || fail "ls -b"
		sleep 0.4
		python3 - "$1" "$T/listed" >"$T/differs" <<'PYTHON' && return
import json, sys
view = {}
for line in open(sys.argv[1]):
    if not line.endswith("\n"):
        continue
    event = json.loads(line)
    if event["event"] == "overflow":
        view.clear()
    elif event["event"] == "gone":
        assert event["bytes.dram"] == event["bytes.ssd"] == 0, event
        view.pop(event["key"], None)
    else:
        view[event["key"]] = event["bytes.dram"], event["bytes.ssd"]
listed = {block["key"]: (block["bytes.dram"], block["bytes.ssd"]) for block in map(json.loads, open(sys.argv[2]))}
for key in view.keys() | listed.keys():
    if view.get(key) != listed.get(key):
        print(key, "events:", view.get(key), "listed:", listed.get(key))
sys.exit(view != listed)
PYTHON
	done
	fail "the events do not give what is listed: $(head -n 5 "$T/differs")"
}
# changes N SEED: save and remove blocks of 64 keys at random
changes() {
	python3 - "$M/s" "$T/b" "$1" "$2" <<'PYTHON' || fail "changes"
import os, random, sys
space, block, n, seed = sys.argv[1], open(sys.argv[2], "rb").read(), int(sys.argv[3]), int(sys.argv[4])
random.seed(seed)
for _ in range(n):
    i = random.randrange(64)
    path = f"{space}/{i:02x}/{i:02x}{i:030x}"
    try:
        if random.random() < 0.5:
            os.remove(path)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "xb") as file:
                file.write(block)
    except (FileNotFoundError, FileExistsError):
        pass
PYTHON
}

start
block "$T/b" --bytes 20000
mkdir "$M/s" || fail "a space"
follow "$T/lines"
put s 1 "$T/b"
sync "$M/s"
says "$T/lines" "stored dram+ssd $(key 1)"
setfattr -n user.kvfs.tier -v ssd "$M/s/$(place 1)" || fail "tier"
says "$T/lines" "stored ssd $(key 1)"
rm "$M/s/$(place 1)"
says "$T/lines" "gone - $(key 1)"
# Whether a block is listed before it is on SSD depends on the time.
eq "the states" "$(cut -d' ' -f2- "$T/lines" | grep -v "stored dram " | uniq)" "overflow
stored dram+ssd $(key 1)
stored ssd $(key 1)
gone - $(key 1)"
eq "their numbers" "$(cut -d' ' -f1 "$T/lines" | xargs)" "$(seq "$(wc -l <"$T/lines")" | xargs)"
end
put s 2 "$T/b"
follow "$T/lines" -l
says "$T/lines" "stored dram.* $(key 2)"
end

# Random changes.  The command is stopped meanwhile, or killed and started again.
follow "$T/json" -l --json
changes 2000 1
sees "$T/json"
freeze "$reader"
changes 500 2
kill -CONT "$reader"
sees "$T/json"
end -KILL
changes 500 3
follow "$T/json" -l --json
sees "$T/json"

# The daemon is killed: what was in memory only is gone, and the events go on with the next daemon.
for pid in $(daemon_pids); do kill -KILL "$pid"; done
umount -l "$M"
gone
for ((i = 0; i < 100 && $(count "$T/json" overflow) < 2; i++)); do sleep 0.1; done
eq "overflows, without a daemon" "$(count "$T/json" overflow)" 2
start
for ((i = 0; i < 300 && $(count "$T/json" overflow) < 3; i++)); do sleep 0.1; done
eq "overflows, with the next daemon" "$(count "$T/json" overflow)" 3
changes 500 4
sees "$T/json"
end

# No change waits for a reader that does not read.
mkfifo "$T/pipe"
exec 7<>"$T/pipe"
follow_pipe() { "$B/kvfs" events s -p "$SOCK" --json >"$T/pipe" 2>"$T/err" & reader=$!; }
follow_pipe
sleep 1
changes 2000 5
eq "a change beside it" "$(timeout 20 "$B/kvfs" ls s -p "$SOCK" | wc -l)" 2
kill -0 "$reader" || fail "the command has ended: $(cat "$T/err")"
end -KILL
exec 7>&-

# Refusals; a space that is removed.
chmod 700 "$M/s"
not "another user's space" "s: no such space" setpriv --reuid 1000 --regid 1000 --clear-groups "$B/kvfs" events s -p "$SOCK"
not "no space" "nothing: no such space" kvfs events nothing -p "$SOCK"
follow "$T/lines"
kvfs rm -r s -p "$SOCK" || fail "rm -r"
wait "$reader"
eq "its status when the space is removed" $? 1
eq "the line about it" "$(cat "$T/err")" "kvfs events: s: no such space"
mkdir "$M/s"
kvfs events s -p "$SOCK" | head -n 1 >"$T/out" &
says "$T/out" overflow
put s 1 "$T/b" # the command notices now that its reader has gone
stop
