#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# unsealed.sh - a block that is being written cannot be read under its name, not
# even by other programs of the same user: it is whole, or it is not there.
. "$(dirname "$0")/lib"
start
block "$T/b" --bytes 100000
mkdir "$M/s" "$M/s/01" || fail mkdir
F=$M/s/$(place 1)
exec 7> "$F"
not "reading a file just made" "No such file" cat "$F"
head -c 50000 "$T/b" >&7 2> /dev/null # close says that it is not whole
not "reading half a block" "No such file" cat "$F"
not "copying half a block" "No such file" cp "$F" "$T/half"
absent "half a block" "$T/half"
tail -c +50001 "$T/b" >&7
exec 7>&-
same "once it is closed" "$T/b" "$F"
stop
