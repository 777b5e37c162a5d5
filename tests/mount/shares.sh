#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shares.sh - one user takes as much as it can of every limited resource; another user can
# still work.
. "$(dirname "$0")/lib"
needs_root setpriv
cp "$B/tests/mount/hog" "$T/hog"
chmod 755 "$T/hog"
start
block "$T/b"
chmod 644 "$T/b"
A="setpriv --reuid 1001 --regid 1001 --clear-groups"
C="setpriv --reuid 1002 --regid 1002 --clear-groups"
ok "A makes a space" $A mkdir -m 755 "$M/a"
ok "C makes a space" $C mkdir -m 700 "$M/c"
ok "A makes a directory" $A mkdir "$M/a/01"
ok "C makes a directory" $C mkdir "$M/c/01"
ok "A writes" $A cp "$T/b" "$M/a/$(place 1)"
ok "C writes" $C cp "$T/b" "$M/c/$(place 1)"
python3 - > "$T/layout" << 'EOF'
tensors = ",".join('{"name":"%0200d","dtype":"U8","shape":[1]}' % i for i in range(180))
print('{"tensors":[%s]}' % tensors)
EOF
ok "A makes another space" $A mkdir -m 755 "$M/big"
ok "with a long layout" $A sh -c "cat $T/layout > $M/big/.layout"

# hog HOW: as user A, open files until refused, print their number and the
# error, and hold them
hog() {
	local i
	rm -f "$T/took"
	mkfifo "$T/let-go"
	$A "$T/hog" "$@" > "$T/took" < "$T/let-go" 2>&1 &
	hog=$!
	exec 9> "$T/let-go"
	for ((i = 0; i < 1200; i++)); do
		[ -s "$T/took" ] && break
		sleep 0.1
	done
	read -r n why < "$T/took"
}
let_go() {
	exec 9>&-
	wait "$hog"
	rm "$T/let-go"
}
works() {
	ok "C opens and reads, $1" $C cmp "$T/b" "$M/c/$(place 1)"
	ok "C lists, $1" $C ls "$M/c/01"
	ok "C writes, $1" $C cp "$T/b" "$M/c/$(place 257)"
	ok "C removes, $1" $C rm "$M/c/$(place 257)"
}
takes() {
	local what=$1
	shift
	hog "$@"
	ok "A is stopped ($what: $n)" [ "$why" = ENFILE ]
	works "while A has all it gets ($what)"
	let_go
	ok "A works again ($what)" $A cmp "$T/b" "$M/a/$(place 1)"
}
takes "a block" open "$M/a/$(place 1)"
takes "a layout" open "$M/big/.layout"
takes "a directory" open "$M/a/01"
takes "files being written" write "$M/a/01/01"
stop
