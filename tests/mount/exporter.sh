#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# exporter.sh - `kvfs exporter` beside a daemon without a mount: HTTP over TCP and UNIX sockets,
# names of spaces, a daemon that ends or hangs, and refusals.
. "$(dirname "$0")/lib"
needs_root setpriv
if nm -D "$B/libkvfs.so" | grep -qE ' U __(asan|tsan)_'; then
	echo "Python cannot load a sanitizer's library"
	exit 77
fi
A="setpriv --reuid 1000 --regid 1000 --clear-groups"
PREFIX=$T/kvfs B=$B VERSION=1 "$here/../../tools/install.sh" install >/dev/null || fail "install"
kvfs=$T/kvfs/bin/kvfs
daemon() { "$kvfs" -o "$BASE,control=$SOCK" "$S" none || fail "no daemon"; }
# serve NAME COMMAND...: start an exporter, and wait until it prints its URL to $T/NAME
serve() {
	local name=$1
	shift
	: >"$T/$name"
	"$@" >"$T/$name" 2>&1 &
	served=$!
	until [ -s "$T/$name" ]; do
		kill -0 $served 2>/dev/null || fail "no exporter: $(cat "$T/$name")"
		sleep 0.05
	done
}
# get NAME [PATH]: print the status and the body that the exporter NAME gives
get() {
	python3 - "$(cat "$T/$1")" "${2:-/metrics}" <<-'END'
		import http.client, socket, sys
		url, path = sys.argv[1:]
		if url.startswith("unix:"):
		    connection = http.client.HTTPConnection("kvfs")
		    connection.sock = socket.socket(socket.AF_UNIX)
		    connection.sock.connect(url[5:])
		else:
		    connection = http.client.HTTPConnection(url.split("/")[2], timeout=20)
		connection.request("GET", path)
		answer = connection.getresponse()
		print(answer.status, answer.headers["Content-Type"])
		sys.stdout.buffer.write(answer.read())
	END
}
refused() { # refused WHAT ARGUMENTS...: fail unless the exporter prints one line with WHAT
	local what=$1
	shift
	timeout 60 "$kvfs" exporter "$@" >"$T/out" 2>"$T/err" </dev/null
	eq "exporter $*: status" $? 1
	eq "exporter $*: lines" "$(wc -l <"$T/err")$(cat "$T/out")" 1
	grep -qF -e "$what" "$T/err" || fail "exporter $*: '$(cat "$T/err")' does not contain '$what'"
}

daemon
"$B/tests/crash/blocks" durable "$SOCK" 0 24 >/dev/null || fail "blocks"
python3 - "$T/kvfs/lib/libkvfs.so.1" "$SOCK" <<-'END' || fail "a space of root's"
	import ctypes, sys
	lib, session, space = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p(), ctypes.c_void_p()
	sys.exit(lib.kvfs_open(sys.argv[2].encode(), ctypes.byref(session)) or
	         lib.kvfs_space_open(session, b"own", None, 0o1700, ctypes.byref(space)))
END
mkdir -m 777 "$T/run"
serve tcp $A "$kvfs" exporter -p "$SOCK" 127.0.0.1:0
tcp=$served
serve named "$kvfs" exporter -p "$SOCK" --spaces '[::1]:0' || exit
serve unix $A "$kvfs" exporter -p "$SOCK" "unix:$T/run/http"
unix=$served
serve root "$kvfs" exporter -p "$SOCK" "unix:$T/run/root"
root=$served
eq "rights of the socket" "$(stat -c '%a %u' "$T/run/http")" "600 1000"
eq "a connection of another user" "$(setpriv --reuid 1001 --regid 1001 --clear-groups env python3 -c '
import socket, sys
print(socket.socket(socket.AF_UNIX).connect_ex(sys.argv[1]))' "$T/run/http")" 13

for name in tcp named unix root; do
	get $name >"$T/got" || fail "$name"
	eq "$name: status" "$(head -n 1 "$T/got")" "200 text/plain; version=0.0.4; charset=utf-8"
	eq "$name: blocks" "$(awk '$1 == "kvfs_blocks{tier=\"ssd\"}" { print $2 }' "$T/got")" 24
	grep -q '^kvfs_request_seconds_count{type="save"} [1-9]' "$T/got" || fail "$name: saves"
	eq "$name: a metric is typed once" "$(grep '^# TYPE' "$T/got" | sort | uniq -d)" ""
done
# The user 1000 may not read the space `own`.  Over TCP names are shown on request only.
for name in tcp: "named:a own" unix:a "root:a own"; do
	eq "spaces of $name" "$(get ${name%:*} | sed -n 's/^kvfs_space_blocks{space="\(.*\)"}.*/\1/p' | sort | xargs)" "${name#*:}"
done
eq "another path" "$(get tcp / | head -n 1 | cut -c 1-3)" 404
serve tcp2 "$kvfs" exporter -p "$SOCK" 127.0.0.1:0
eq "root's, over TCP" "$(get tcp2 | grep -c kvfs_space_)" 0

# The metrics of spaces are those of the mount, for all names, sorted and summed up alike.
pid=$(pgrep -f -- "^[^ ]*kvfs -o .*$S none" | head -n 1)
kill "$pid"
for ((i = 0; i < 100; i++)); do
	get tcp >"$T/got"
	[ "$(head -c 3 "$T/got")" = 503 ] && break
	sleep 0.1
done
eq "without a daemon" "$(tail -n 1 "$T/got")" "no kvfs answers: Transport endpoint is not connected"
while [ -e "/proc/$pid" ]; do sleep 0.05; done
start
mkdir "$M"/n{1..104} "$M/other" "$M/"$'caf\xff\n"\\' "$M/"$'\e[1m\x7f' "$M/café" || fail "mkdir"
block "$T/b"
put n104 1 "$T/b" && put n7 1 "$T/b" && put other 2 "$T/b" && put $'\e[1m\x7f' 3 "$T/b" || fail put
for ((i = 0; i < 100; i++)); do
	get root >"$T/got"
	[ "$(head -c 3 "$T/got")" = 200 ] && break
	sleep 0.1
done
eq "with a daemon again" "$(head -c 3 "$T/got")" 200
for f in "$T/got" "$M/.kvfs/metrics"; do
	grep '^kvfs_space_' "$f" | sort >"$T/${f##*/}.spaces"
done
eq "metrics of a hundred spaces and a sum" "$(grep -c '^kvfs_space_blocks' "$T/got.spaces")" 101
for what in 'space="other"' 'space="/other"' 'space="/1b[1m/7f"' 'space="n104"' 'space="n7"' 'space="a"'; do
	grep -qF "$what" "$T/got.spaces" || fail "no $what"
	same "$what" <(grep -F "$what" "$T/got.spaces") <(grep -F "$what" "$T/metrics.spaces")
done
rmdir "$M"/n{1..6} "$M"/n{8..30} && get root | grep '^kvfs_space_' | sort >"$T/got.spaces"
grep '^kvfs_space_' "$M/.kvfs/metrics" | sort >"$T/metrics.spaces"
same "all spaces" "$T/got.spaces" "$T/metrics.spaces"

freeze "$(daemon_pids | head -n 1)"
eq "a daemon that hangs" "$(get tcp | head -c 3)" 503
kill -CONT "$(daemon_pids | head -n 1)"
for ((i = 0; i < 100; i++)); do
	[ "$(get tcp | head -c 3)" = 200 ] && break
	sleep 0.1
done
eq "the daemon that goes on" "$(get tcp | head -c 3)" 200

# Silent clients take a bounded number of threads and descriptors.
port=$(sed 's/.*:\([0-9]*\).*/\1/' "$T/tcp")
python3 - "$port" "$tcp" <<-'END' || fail "300 silent clients"
	import os, socket, sys, time
	clients = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(300)]
	time.sleep(1)
	threads = len(os.listdir(f"/proc/{sys.argv[2]}/task"))
	files = len(os.listdir(f"/proc/{sys.argv[2]}/fd"))
	sys.exit(f"{threads} threads, {files} files" if threads > 80 or files > 100 else 0)
END
for ((i = 0; i < 100; i++)); do
	[ "$(get tcp 2>/dev/null | head -c 3)" = 200 ] && break
	sleep 0.1
done
eq "behind silent clients that have gone" "$(get tcp | head -c 3)" 200

# A client that sends nothing keeps no other waiting.
exec 3<>"/dev/tcp/127.0.0.1/$port"
eq "beside a silent client" "$(get tcp | head -c 3)" 200
exec 3>&-

refused "neither ADDRESS:PORT nor unix:PATH" -p "$SOCK" 9749
refused "neither ADDRESS:PORT nor unix:PATH" -p "$SOCK" 127.0.0.1:65536
refused "neither ADDRESS:PORT nor unix:PATH" -p "$SOCK" unix:
refused "in use" -p "$SOCK" "$(sed 's,http://\(.*\)/metrics,\1,' "$T/tcp")"
refused "in use" -p "$SOCK" "unix:$T/run/http"
refused "No such file" -p "$SOCK" "unix:$T/nothing/http"
refused "too long" -p "$SOCK" "unix:/tmp/$(printf %0120d 1)"
refused "in use" -p "$SOCK" "unix:$T/tcp"
refused "label" -p "$SOCK" "$(printf %080d 1):9749"
eq "a file in the way" "$(cut -c 1-7 "$T/tcp")" http://

# An exporter that is killed leaves its socket, which the next one replaces.
kill -KILL $root
wait $root 2>/dev/null
serve root2 "$kvfs" exporter -p "$SOCK" "unix:$T/run/root"
eq "the next exporter" "$(get root2 | head -c 3)" 200
rm "$T/run/root"
# Of exporters that start at once beside the socket of a killed one, one serves.
python3 - "$T/kvfs/libexec/kvfs/command.py" "$T/run/race" <<-'END' || fail "exporters that start at once"
	import multiprocessing, os, runpy, socket, sys
	command, path = runpy.run_path(sys.argv[1]), sys.argv[2]
	fork = multiprocessing.get_context("fork")

	def start(begin, found, end):
	    begin.wait()
	    try:
	        listening = command["listen"](f"unix:{path}")
	        found.put(1)
	    except command["Failure"] as error:
	        found.put(0 if "in use" in str(error) else str(error))
	    end.wait()

	for turn in range(30):
	    begin, end, found = fork.Barrier(8), fork.Barrier(9), fork.SimpleQueue()
	    started = [fork.Process(target=start, args=(begin, found, end)) for _ in range(8)]
	    for process in started:
	        process.start()
	    counts = [found.get() for _ in started]
	    with socket.socket(socket.AF_UNIX) as client:
	        refused = client.connect_ex(path)
	    end.wait()
	    for process in started:
	        process.join()
	    if sorted(map(str, counts)) != ["0"] * 7 + ["1"] or refused or os.path.exists(f"{path}.lock"):
	        sys.exit(f"turn {turn}: {counts}, connect: {os.strerror(refused)}")
END
kill $unix $served $tcp
wait $unix
eq "status after SIGTERM" $? 0
wait $served
eq "status after SIGTERM without the socket" $? 0
absent "socket of an exporter that has ended" "$T/run/http"
"$kvfs" exporter --help >"$T/help"
for option in $(grep -oE '^  (-[a-zA-Z]|--[a-z]+)' "$T/help"); do
	case $option in -h | --help) continue ;; esac
	sed -n "/^\.SS exporter/,/^\.S[SH] /p; /^\.SH OPTIONS/,/^\.S[SH] [^O]/p" "$here/../../man/kvfs-commands.1" |
		tr -d '\\' | grep -q -- "$option" || fail "kvfs-commands(1) does not know exporter $option"
done
stop
