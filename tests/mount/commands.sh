#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# commands.sh - `kvfs WORD ...` through the control socket, of a mount and of a daemon without
# one: what users see and may do; words and stores of the same name; refusals.
. "$(dirname "$0")/lib"
needs_root setpriv
# Install where other users can run the programs.
if nm -D "$B/libkvfs.so" | grep -qE ' U __(asan|tsan)_'; then
	sanitizer=$(ldd "$B/libkvfs.so" | sed -n 's/.* \(\/[^ ]*lib[at]san[^ ]*\).*/\1/p')
fi
PREFIX=$T/kvfs B=$B VERSION=1 "$here/../../tools/install.sh" install >/dev/null || fail "install"
kvfs() {
	# Python cannot load a library built with a sanitizer before the sanitizer.
	env ${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} "$T/kvfs/bin/kvfs" "$@"
}
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
as_a() { $A env ${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} "$T/kvfs/bin/kvfs" "$@"; }
# refused WORDS... : one line on stderr that names the command, nothing on stdout, status 1
refused() {
	local what=$1 word=$2 rc
	shift
	"${run[@]:-kvfs}" "$@" >"$T/out" 2>"$T/err" </dev/null
	rc=$?
	eq "kvfs $*: status, saying '$(cat "$T/err")'" $rc 1
	eq "kvfs $*: lines" "$(wc -l <"$T/err")" 1
	eq "kvfs $*: on stdout" "$(cat "$T/out")" ""
	grep -qF -e "$what" "$T/err" || fail "kvfs $*: '$(cat "$T/err")' does not say '$what'"
	case $(cat "$T/err") in "kvfs $word: "*) ;; *) fail "kvfs $*: '$(cat "$T/err")' names no command" ;; esac
}
member() { python3 -c 'import json, sys; print(eval(sys.argv[1], {"j": json.load(sys.stdin)}))' "$1"; }

start
N=$T/none.sock
"$B/kvfs" -o "$BASE,control=$N" "$T/store2" none || fail "a daemon without a mount"
mkdir -m 700 "$M/own" && mkdir -m 755 "$M/all" "$M/"$'a "\n\\\xff' || fail "spaces"
for i in 1 2 3; do
	block "$T/b$i" --seed $i --bytes 20000
	put own $i "$T/b$i"
done
put all 1 "$T/b1"
sync "$M/own" "$M/all"
"$B/tests/crash/blocks" durable "$N" 0 24 >/dev/null || fail "blocks without a mount"

# Each daemon is found by its mount point or its socket.
for path in "$M" "$SOCK" "$N"; do
	kvfs status -p "$path" >"$T/out" || fail "status -p $path"
	grep -q '^version  ' "$T/out" && grep -q '^ssd .* online$' "$T/out" &&
		grep -qE '^rights    capabilities [a-z].*, no_new_privs 1, seccomp (on|off)$' "$T/out" || fail "status: $(cat "$T/out")"
done
eq "the store" "$(kvfs status -p "$N" | sed -n 's/^store *//p')" "$T/store2"
eq "\$KVFS" "$(KVFS=$N kvfs status | sed -n 's/^store *//p')" "$T/store2"
kvfs status --json -p "$N" >"$T/json" || fail "status --json"
eq "config" "$(member 'j["config"]["mountpoint"]' <"$T/json")" none
eq "metrics" "$(member 'j["metrics"]["kvfs_blocks{tier=\"ssd\"}"]' <"$T/json")" 24
same "as on the mount" <(kvfs status --json -p "$M" | member '"\n".join("%s=%s" % i for i in sorted(j["config"].items()))') \
	<(sort "$M/.kvfs/config")

# Spaces: all for operators, for others those that they may read.
eq "all spaces" "$(kvfs ls -p "$M" | awk 'NR > 1 { print $1, $3, $NF }')" "$(printf '%s\n' 'drwxr-xr-x 0 "?\?' \
	'drwxr-xr-x 1 all' 'drwx------ 3 own')"
eq "A's spaces" "$(as_a ls -p "$SOCK" | awk '{ print $NF }' | xargs -d '\n')" 'space "?\? all'
eq "a strange name" "$(kvfs ls --json -p "$M" | member 'j[0]["name"].encode("utf-8", "surrogateescape")')" \
	"b'a \"\\n\\\\\\xff'"
eq "one space" "$(kvfs ls own -p "$M" | awk 'NR > 1 { print $3 }')" 3
eq "./ before it" "$(kvfs ls ./own -p "$M" | awk 'NR > 1 { print $3 }')" 3
run=(as_a)
refused "own: no such space" ls own -p "$SOCK"
refused "own: no such space" du own -p "$M"
run=()
eq "bytes" "$(kvfs du --json -p "$M" | member '[j["spaces"][s]["ssd"] for s in ("own", "all")]')" \
	"[$(du -s --block-size=1 "$M/own" "$M/all" | awk '{ print $1 / 2 }' | xargs | sed 's/ /, /')]"
eq "bytes by owner" "$(kvfs du -u -p "$M" | awk 'NR == 2 { print $NF }')" root
eq "bytes of one" "$(kvfs du own -p "$M" | awk 'NR > 1 { print $NF }' | xargs)" "own total"

# Many spaces, also those that A may not read: none is lost, and none is shown to A.
mkdir -m 700 "$M"/many{1..600} || fail "many"
mkdir "$M/last"
eq "all of many" "$(kvfs ls -p "$M" | wc -l)" 605
eq "A's of many" "$(as_a ls -p "$SOCK" | awk '{ print $NF }' | tail -n 2 | xargs)" "all last"
rmdir "$M"/many*
mkdir "$M/"$'\xc3\xa9\xff'
eq "a name that is partly UTF-8" "$(kvfs du $'./\xc3\xa9\xff' -p "$M" | awk 'NR == 2 { print $4 }')" $'\xc3\xa9?'
rmdir "$M/"$'\xc3\xa9\xff'

# top: a line a second when piped, and little of a core.
eq "top" "$(kvfs top -n 3 -i 0.1 -p "$N" | wc -l)" 4
eq "top --json" "$(kvfs top -n 2 -i 0.1 --json -p "$N" | tail -n 1 | member 'j["ssd_full"] > 0')" True
# cpu N: CPU time of N lines, in microseconds
cpu() {
	python3 - "$T/kvfs/bin/kvfs" top -n "$1" -i 0.001 -p "$N" <<-'END'
		import resource, subprocess, sys
		subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
		used = resource.getrusage(resource.RUSAGE_CHILDREN)
		print(round(1e6 * (used.ru_utime + used.ru_stime)))
	END
}
if [ -z "${sanitizer:-}" ]; then
	line=$((($(cpu 101) - $(cpu 1)) / 100))
	echo "a line of top takes $line us"
	[ $line -le 10000 ] || fail "top takes $line us of each second, more than 1 % of a core"
fi
kvfs top -p "$N" | head -n 2 >/dev/null
eq "top, when its reader has gone" "${PIPESTATUS[*]}" "141 0"

# Blocks are removed, pinned and brought to memory.
refused "own: name blocks of the space" rm own -p "$M"
refused "xyz: not the key" rm own "$(key 1)" xyz -p "$M"
[ -e "$M/own/$(place 1)" ] || fail "a bad key, and the good one before it was removed"
refused "$(key 9): No such file or directory" rm own "$(key 1)" "$(key 9)" -p "$SOCK"
absent "block 1" "$M/own/$(place 1)"
ok "pin" kvfs pin own "$(key 2)" "$(key 3)" -p "$SOCK"
eq "pinned" "$(xattr "$M/own/$(place 2)" pin)$(xattr "$M/own/$(place 3)" pin)" 11
ok "unpin, from standard input" sh -c "echo $(key 2) | $T/kvfs/bin/kvfs unpin own - -p $SOCK"
eq "unpinned" "$(xattr "$M/own/$(place 2)" pin)$(xattr "$M/own/$(place 3)" pin)" 01
refused "KEY" pin own -p "$SOCK"
run=(as_a)
for word in rm pin unpin warm; do refused "own: no such space" $word own "$(key 2)" -p "$SOCK"; done
refused "own: no such space" set own quota.ssd=1G -p "$SOCK"
refused "all: $(key 1): Permission denied" rm all "$(key 1)" -p "$SOCK"
refused "all: Permission denied" rm -r all -p "$SOCK"
refused "Operation not permitted" set all quota.ssd=1G -p "$SOCK"
refused "Operation not permitted" set 1000 quota.ssd=1G -p "$SOCK"
refused "user 0: Permission denied" set 0 -p "$SOCK"
run=()
[ -e "$M/all/$(place 1)" ] || fail "A has removed a block"
setfattr -n user.kvfs.tier -v ssd "$M/own/$(place 2)" || fail "tier"
eq "on SSD only" "$(xattr "$M/own/$(place 2)" tier)" ssd
ok "warm one" kvfs warm own "$(key 2)" -p "$M"
eq "warm" "$(xattr "$M/own/$(place 2)" tier)" dram+ssd
setfattr -n user.kvfs.tier -v ssd "$M/own/$(place 3)" || fail "tier"
ok "warm all" kvfs warm own -p "$SOCK"
eq "all are warm" "$(xattr "$M/own/$(place 3)" tier)" dram+ssd
for i in 2 3; do setfattr -n user.kvfs.tier -v ssd "$M/own/$(place $i)" || fail "tier"; done
env ${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} python3 - "$T/kvfs/libexec/kvfs/command.py" "$SOCK" \
	"$(key 9)" "$(key 2)" "$(key 3)" <<-'END' || fail "warm beside a block that was removed meanwhile"
	import runpy, sys
	command = runpy.run_path(sys.argv[1])
	command["Space"].pages = lambda space: (command["keys_of"]([key]) for key in sys.argv[3:])
	sys.exit(command["main"](["warm", "own", "-p", sys.argv[2]]))
END
eq "the blocks behind it" "$(xattr "$M/own/$(place 2)" tier)$(xattr "$M/own/$(place 3)" tier)" dram+ssddram+ssd
ok "warm an empty space" kvfs warm last -p "$M"
refused "$(key 9): No such file" warm own "$(key 9)" -p "$M"
for word in rm warm why pin; do
	refused "standard input names no block" "$word" own - -p "$SOCK" </dev/null
done

# Listings and the tree: a prompt of four blocks that two others continue, one without a
# parent, and one whose parent is not there.
mkdir -m 755 "$M/tree"
chain() { # chain PARENT KEY...: save blocks, each with the one before as parent
	local parent=${1:+$(key "$1")} i
	shift
	for i; do
		block "$T/b" --seed "$i" --bytes 20000 --meta "parent=$parent" --meta "position=$((i % 16))" --meta tokens=16
		put tree "$i" "$T/b"
		parent=$(key "$i")
	done
}
chain "" 16 17 18 19
chain 19 36 37 38
chain 19 52 53
chain "" 64
chain 99 80
sync "$M/tree"
setfattr -n user.kvfs.tier -v ssd "$M/tree/$(place 17)" || fail "tier"
ok "warm one twice" kvfs warm tree "$(key 18)" "$(key 19)" -p "$M"
kvfs ls -b tree -p "$M" >"$T/out" || fail "ls -b"
eq "blocks" "$(wc -l <"$T/out")" 12
eq "a block on SSD" "$(grep "$(key 17)" "$T/out" | awk '{ print $1, $2, $3, $5, $7 }')" "1 16 0 0 0"
kvfs ls -b tree --json -p "$SOCK" >"$T/json" || fail "ls -b --json"
eq "one object a line" "$(grep "$(key 37)" "$T/json" | head -n 1 | member '(j["position"], j["tokens"], j["parent"], j["bytes.ssd"])')" \
	"(5, 16, '$(key 36)', $(($(stat -c %b "$M/tree/$(place 37)") * 256)))"
tree() { kvfs tree tree -p "$SOCK" "$@" | awk 'NR > 1 { $3 = $4 = $6 = ""; print }' | tr -s ' '; }
eq "the tree" "$(tree)" "\
64 4 0 10000000…
48 3 0 ├ 24000000…
32 2 0 └ 34000000…
16 1 0 40000000…
16 1 0 50000000…"
eq "the tree without branches" "$(tree -d 1)" "\
144 9 0 10000000…
16 1 0 40000000…
16 1 0 50000000…"
eq "the largest of the tree" "$(tree -n 1)" "\
64 4 0 10000000…
48 3 0 ├ 24000000…
32 2 0 └ 1 more
32 2 0 2 more"
eq "the tree's bytes" "$(kvfs tree tree --json -n 0 -p "$M" | member 'sum(i["bytes.ssd"] for r in j for i in [r, *r["branches"]])')" \
	"$(kvfs ls tree --json -p "$M" | member 'j[0]["bytes.ssd"]')"
eq "the tree of an empty space" "$(kvfs tree last --json -p "$M")" "[]"
refused "nope: no such space" tree nope -p "$M"
refused "-d: 'x'" tree own -d x -p "$M"
run=(as_a)
refused "own: no such space" tree own -p "$SOCK"
refused "own: no such space" ls -b own -p "$SOCK"
run=()
kvfs rm -r tree -p "$M" || fail "rm -r tree"

# Limits of spaces and users are those of the mount's attributes.
ok "set" kvfs set own quota.ssd=64M reserve.dram=1M rate.put=1G -p "$SOCK"
eq "what the mount shows" "$(xattr "$M/own" quota.ssd) $(xattr "$M/own" reserve.dram) $(xattr "$M/own" rate.put)" \
	"67108864 1048576 1073741824"
eq "what is printed" "$(kvfs set own -p "$SOCK" | head -n 3 | xargs)" "quota.dram=0 quota.ssd=67108864 reserve.dram=1048576"
eq "JSON" "$(kvfs set own quota.ssd=1% --json -p "$M" | member 'j["quota.ssd"]')" "$(xattr "$M/own" quota.ssd)"
for limit in quota quota.ssd quota.ssd= quota.tape=1 quota.ssd=-1 quota.ssd=1.5G rate.put=5% quota.dram=64MB quota.ssd=101% \
	quota.ssd=0% rate.put=1T ttl=195d ttl=1w; do
	refused "$limit: not" set own quota.dram=7M "$limit" -p "$SOCK"
done
env ${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} python3 - "$T/kvfs/lib/libkvfs.so.1" "$SOCK" \
	<<-'END' || fail "5,000 texts that are no limits"
	import ctypes, sys
	lib, session = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
	lib.kvfs_open(sys.argv[2].encode(), ctypes.byref(session))
	texts = [b"x", b"=", b" ", b"ttl=1s  ttl=1s", b"ttl=1s " * 100] * 1000
	sys.exit(any(lib.kvfs_limit(session, None, 0, text) != -22 for text in texts))
END
refused "No space left" set own quota.dram=7M reserve.dram=1T -p "$SOCK"
not "two limits in one attribute" "Invalid argument" setfattr -n user.kvfs.quota.dram -v "1M quota.ssd=1M" "$M/own"
eq "nothing has changed" "$(xattr "$M/own" quota.dram)" 0
ok "a user's" kvfs set 1000 quota.ssd=32M -p "$N"
eq "the user's" "$(as_a set 1000 -p "$N" | sed -n 's/^quota.ssd=//p')" 33554432
refused "no uid" set 4294967295 quota.ssd=1M -p "$N"
ok "the last uid" kvfs set 4294967294 quota.ssd=32M -p "$N"
eq "its limit" "$(kvfs set 4294967294 -p "$N" | sed -n 's/^quota.ssd=//p')" 33554432
mkdir "$M/1000"
ok "a space that is called like a user" kvfs set ./1000 quota.ssd=1M -p "$M"
eq "its limit" "$(xattr "$M/1000" quota.ssd)" 1048576
ok "warm without a mount" kvfs warm a -p "$N"
ok "a whole space" kvfs rm -r a -p "$N"
eq "no space is left" "$(kvfs ls --json -p "$N")" "[]"
refused "nope: no such space" rm -r last nope -p "$M"
[ -d "$M/last" ] || fail "rm -r has removed a space beside one that does not exist"
ok "two spaces" kvfs rm -r last ./1000 -p "$M"
eq "what rm -r leaves" "$(kvfs ls --json -p "$M" | member '[i["name"] for i in j][1:]')" "['all', 'own']"

# Ctrl-C ends a command also while libkvfs waits for a daemon that hangs.
ok "options between arguments" kvfs warm own -p "$M" "$(key 2)"
env ${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} python3 - "$T/kvfs/bin/kvfs" "$SOCK" "$(key 2)" \
	"$(pgrep -f -- "^[^ ]*kvfs .*$S $M" | head -n 1)" <<-'END' || fail "Ctrl-C"
	import fcntl, os, signal, subprocess, sys, termios, time
	kvfs, sock, key, daemon = sys.argv[1:]
	signal.signal(signal.SIGINT, signal.SIG_DFL) # a shell ignores it for a job in the background
	command = subprocess.Popen([kvfs, "warm", "own", "-", "-p", sock], stdin=subprocess.PIPE)
	command.stdin.write(key.encode())
	command.stdin.flush()
	while any(fcntl.ioctl(command.stdin, termios.FIONREAD, bytes(4))): # until the command reads keys
	    time.sleep(0.05)
	os.kill(int(daemon), signal.SIGSTOP)
	time.sleep(0.2)
	command.stdin.close()
	time.sleep(0.5)
	assert command.poll() is None
	command.send_signal(signal.SIGINT)
	assert command.wait(20) == -signal.SIGINT
	os.kill(int(daemon), signal.SIGCONT)
END

# Wrong arguments, and words that are no command.
refused "no kvfs answers" ls -p "$T/nothing"
refused "unrecognized arguments: x" status x -p "$M"
refused "-p needs a MOUNTPOINT or SOCKET" rm -r -p "" s
python3 - "$T/old" <<-'END' &
	import socket, struct, sys
	listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
	listening.bind(sys.argv[1])
	listening.listen()
	while True:
	    connection = listening.accept()[0]
	    asked = connection.recv(256) # HELLO of wire.h
	    if len(asked) >= 24:
	        kind, _, count, tag, *_ = struct.unpack_from("=HHIQIiQ", asked)
	        connection.send(struct.pack("=HHIQIiQ IIQ16x", kind, 1, count, tag, 0, -93, 0, 99, 98, 0))
END
while [ ! -S "$T/old" ]; do sleep 0.05; done
kvfs ls -p "$T/old" 2>"$T/err"
eq "an incompatible daemon" "$? $(grep -c 'versions 98 to 99' "$T/err") $(wc -l <"$T/err")" "1 1 1"
for n in 0 1.5 x; do refused "-n: '$n' is not" top -n "$n" -p "$M"; done
refused "-n: expected" top -n
# Without -p: the daemons that a connector would find
alone() {
	env -i PATH="$PATH" XDG_RUNTIME_DIR="$T/runtime" XDG_CACHE_HOME="$T/cache" \
		${sanitizer:+LD_PRELOAD="$sanitizer" ASAN_OPTIONS=detect_leaks=0} "$T/kvfs/bin/kvfs" "$@"
}
if alone ls 2>&1 | grep -q 'no daemon was found'; then # no daemon runs on this machine but those of tests
	run=(alone)
	refused "name one with -p" ls
	mkdir -p "$T/runtime/kvfs" "$T/cache/kvfs-$(uname -n)"
	ln -s "$N" "$T/runtime/kvfs/control"
	eq "a daemon below XDG_RUNTIME_DIR" "$(alone status | sed -n 's/^store *//p')" "$T/store2"
	ln -s "$SOCK" "$T/cache/kvfs-$(uname -n)/control"
	refused "choose one with -p: $T/runtime/kvfs/control $T/cache/kvfs-$(uname -n)/control" ls
	rm "$T/runtime/kvfs/control"
	eq "a daemon below XDG_CACHE_HOME" "$(alone status | sed -n 's/^store *//p')" "$S"
	run=()
fi
cd "$T" || exit
not "a word that is none" "topp: neither a command nor a directory: for a new store write ./topp" kvfs topp "$M"
not "a command behind options" "write ./top" kvfs -f top none
absent "a store" "$T/top"
ok "a store called top" kvfs -o "$BASE,control=$T/top.sock" ./top none
eq "the store called top" "$(kvfs status -p "$T/top.sock" | sed -n 's/^store *//p')" "$T/./top"
ok "the command beside it" kvfs top -n 1 -i 0.1 -p "$T/top.sock"
ln -s "$B/kvfs" "$T/mount.kvfs" && mkdir "$T/m2"
ok "mount.kvfs knows no words" "$T/mount.kvfs" du "$T/m2" -o "$BASE,control=$T/du.sock"
[ -d "$T/du" ] && umount "$T/m2" || fail "a store called du, by mount.kvfs"
for word in bench bundle forget fsck replay; do
	grep -q -- '--json' <(kvfs $word --help) || fail "$word has no --json"
done
eq "JSON of no figure" "$(kvfs bench --build "$T" --only none --json 2>"$T/table" | xargs)" "[ ]"
grep -q "^0 figures" "$T/table" || fail "the table: $(cat "$T/table")"
eq "a program" "$(kvfs fsck "$T/top.nothing" 2>&1)" "kvfs-fsck: $T/top.nothing: No such file or directory"
for word in $(sed -n '/^} words\[\]/,/};/p' "$here/../../fs/main.c" | grep -oE '\{"[a-z]+"\}' | tr -d '{"}'); do
	kvfs "$word" --help >"$T/help" || fail "$word --help"
	for option in $(grep -oE '^  (-[a-zA-Z]|--[a-z]+)' "$T/help"); do
		case $option in -h | --help) continue ;; esac
		sed -n "/^\.SS $word/,/^\.S[SH] /p; /^\.SH OPTIONS/,/^\.S[SH] [^O]/p" "$here/../../man/kvfs-commands.1" |
			tr -d '\\' | grep -q -- "$option" || fail "kvfs-commands(1) does not know $word $option"
	done
done
# The examples of kvfs-commands(1), with the daemon and a space of this test, and for seconds.
if [ -z "${sanitizer:-}" ]; then
	. "$here/typed"
	printf '#!/bin/sh\nhead -n 2 >events.txt\n' >"$T/router" && chmod 755 "$T/router"
	typed_page "$here/../../man/kvfs-commands.1" | sed "s|/run/kvfs/control|$SOCK|; s/qwen3-4b.tp0/own/; s/-n 60/-n 2/
		s/10\.0\.0\.7:9749/127.0.0.1:0/; s|\./router|./router \&|" >"$T/examples"
	eq "examples" "$(grep -c '^kvfs ' "$T/examples")" 8
	command -v jq >/dev/null || sed -i '/| jq/d' "$T/examples"
	python3 -Ic 'import zmq' 2>/dev/null || sed -i '/--zmq/d' "$T/examples"
	(cd "$T" && PATH=$T/kvfs/bin:$PATH KVFS=$SOCK timeout 60 bash -exc '. ./examples
		until grep -q stored events.txt; do sleep 0.1; done
		kill $(jobs -p)') >"$T/out" 2>&1 || fail "an example of kvfs-commands(1): $(cat "$T/out")"
	[ -s "$T/load.txt" ] || fail "kvfs top prints nothing"
	eq "the ttl" "$(xattr "$M/own" ttl)" 604800
fi
# Closed standard descriptors do not become files of the daemon or of a command.
(exec <&- >&- 2>&-; exec "$T/kvfs/bin/kvfs" -o "$BASE,control=$T/closed.sock" "$T/closed" none) || fail "a start without descriptors"
pid=$(pgrep -f -- "^[^ ]*kvfs .*$T/closed none" | head -n 1)
for n in 0 1 2; do eq "descriptor $n" "$(readlink "/proc/$pid/fd/$n")" /dev/null; done
kvfs ls -p "$T/closed.sock" >&- 2>"$T/err"
eq "a closed output" "$? $(cat "$T/err")" "1 kvfs ls: standard output: Bad file descriptor"
kvfs ls -p "$T/closed.sock" >/dev/full 2>"$T/err"
eq "a full output" "$? $(cat "$T/err")" "1 kvfs ls: standard output: No space left on device"
kvfs ls nothing -p "$T/closed.sock" 2>&-
eq "closed errors" $? 1
not "a closed input" "standard input names no block" sh -c "exec $T/kvfs/bin/kvfs rm all - -p $SOCK <&-"
stop_all() {
	for pid in $(daemon_pids); do kill "$pid"; done
	gone
}
stop_all
