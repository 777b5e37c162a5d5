#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# openers.sh - one user keeps as many blocks open as possible, even removed ones, on SSD or
# in DRAM alone; other users get their share, and their guarantees.
. "$(dirname "$0")/lib"
needs_root setpriv
cat > "$T/blocks.py" << 'EOF'
"""blocks.py SPACE N BYTES keep|save: write N blocks of BYTES.  keep: hold each
open, remove it, and wait for the end of the input; save: see that each is
durable.  Prints how many, and the errors."""
import os, sys
space, n, size, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
text = b'{"k":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
data = len(text).to_bytes(8, "little") + text + bytes(size)
done, errors, held = 0, {}, []
for _ in range(n):
    key = os.urandom(16).hex()
    path = f"{space}/{key[:2]}/{key}"
    try:
        os.makedirs(path[:-33], exist_ok=True)
        with open(path, "xb", buffering=0) as f:
            f.write(data)
            if how == "save":
                os.fsync(f.fileno())
        if how == "keep":
            if len(held) % 8 == 0 and "flush" in sys.argv:
                d = os.open(space, os.O_RDONLY)
                os.fsync(d)
                os.close(d)
            held.append(os.open(path, os.O_RDONLY))
            os.unlink(path)
        done += 1
    except OSError as e:
        errors[e.strerror] = errors.get(e.strerror, 0) + 1
print(done, errors, flush=True)
if how == "keep":
    sys.stdin.read()
EOF
user() { # user UID COMMAND...: run COMMAND as a user
	PATH=/usr/bin:/bin setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"
}
# besieged OPTIONS FLUSH: user 1001 holds as many blocks as possible, user 1002 has a
# guarantee, user 1003 has none
besieged() {
	local n rest i u holder
	start "$1"
	setfattr -n user.kvfs.reserve.dram -v 16M "$M/.kvfs/tenants/1002"
	for u in 1001 1002 1003; do
		ok "$u makes a space" user $u mkdir "$M/s$u"
	done
	mkfifo "$T/end"
	user 1001 python3 "$T/blocks.py" "$M/s1001" 600 1000000 keep $2 \
		> "$T/held" < "$T/end" &
	holder=$!
	exec 9> "$T/end"
	for ((i = 0; i < 1200; i++)); do
		[ -s "$T/held" ] && break
		sleep 0.1
	done
	for u in 1002 1003; do
		read -r n rest < <(user $u python3 "$T/blocks.py" "$M/s$u" 40 200000 ${3:-save})
		eq "blocks that user $u saves beside one who has $(cat "$T/held") open" \
			"$n $rest" "40 {}"
	done
	exec 9>&-
	wait "$holder"
	rm "$T/end"
	echo "$1: user 1001 held $(cat "$T/held")"
	stop
	rm -rf "$S"
}
BASE=$ALL,dram=64M,segment=8M,hugepages=off,scrub=0
besieged ssd=256M flush
besieged ssd=256M ""
besieged ssd=256M,writeback=none "" write
besieged ssd=0 "" write

# A user keeps one removed block open in each segment file: the files must still be emptied
# for blocks of another size.
start ssd=96M
ok "1001 makes a space" user 1001 mkdir "$M/s"
read -r n rest < <(user 1001 python3 "$T/blocks.py" "$M/s" 120 1000000 save)
eq "saved" "$n $rest" "120 {}"
cat > "$T/hold.py" << 'EOF'
"""hold.py FILE...: open and remove each; at the end of the input compare the bytes."""
import os, sys
held = []
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    held.append((fd, os.pread(fd, 1 << 21, 0)))
    os.unlink(path)
print(len(held), flush=True)
sys.stdin.read()
print(sum(os.pread(fd, 1 << 21, 0) == data for fd, data in held))
EOF
mkfifo "$T/end"
python3 "$T/hold.py" $(ls -tr "$M"/s/*/* | awk 'NR % 4 == 0') > "$T/held" < "$T/end" &
holder=$!
exec 9> "$T/end"
for ((i = 0; i < 600 && ! $(wc -l < "$T/held"); i++)); do sleep 0.1; done
ok "1002 makes a space" user 1002 mkdir "$M/s1002"
read -r n rest < <(user 1002 python3 "$T/blocks.py" "$M/s1002" 40 200000 save 9>&-)
eq "blocks saved beside $(cat "$T/held") removed ones" "$n $rest" "40 {}"
exec 9>&-
wait "$holder"
read -r n same < <(echo $(cat "$T/held"))
eq "removed blocks with their bytes" "$same" "$n"
stop
